"""A downloaded wheel becomes a folder of its Python files."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from packaging.version import Version

from adapters.shared.tests.download import tried_releases, unpack
from harness.api import EngineSpec
from mla_harness_adapters.patches import Patch, read_patches
from mla_harness_adapters.releases import release_of
from mla_harness_sglang.faults import PATCHES as SGLANG
from mla_harness_vllm.faults import PATCHES as VLLM


def test_everything_but_compiled_extensions_is_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "vllm-0.33.0.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in ("vllm/__init__.py", "vllm/_C.abi3.so", "vllm-0.33.0.dist-info/METADATA"):
            archive.writestr(name, "")
    site = tmp_path / "site"
    assert unpack(wheel, site) == 2
    assert {path.name for path in site.rglob("*") if path.is_file()} == {"__init__.py", "METADATA"}
    assert not wheel.exists()


@pytest.mark.parametrize(("engine", "patches"), [("vllm", VLLM), ("sglang", SGLANG)])
def test_the_releases_that_are_tried_are_those_whose_code_was_read(
    engine: str, patches: dict[str, tuple[Patch, ...]]
) -> None:
    releases = tried_releases(engine)
    assert releases == sorted(releases, key=Version) and len(releases) > 2
    read_before = max(release_of(patch.last) for found in patches.values() for patch in found)
    assert release_of(releases[-1]) < read_before


def test_an_engine_without_a_list_has_no_releases() -> None:
    assert tried_releases("lmcache") == []


def test_a_patch_that_goes_on_ends_before_the_first_release_that_was_not_read(
    tmp_path: Path,
) -> None:
    rows = "edits: [{in: 'a:b', old: x, new: y}]"
    (tmp_path / "patches.yaml").write_text(
        "read_before: 0.3.0\nengine.bug:\n"
        f"- {{releases: 0.1.0 to 0.2.0, {rows}}}\n- {{releases: 0.2.0 on, {rows}}}\n"
    )
    engine = EngineSpec("engine", "Engine", "engine", "engine")
    (patches,) = read_patches(engine, tmp_path / "patches.yaml").values()
    assert [(patch.first, patch.last) for patch in patches] == [
        ("0.1.0", "0.2.0"),
        ("0.2.0", "0.3.0"),
    ]
