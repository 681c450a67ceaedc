"""`.ci/run` takes the README's two commands, and refuses a README without them in one line."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
spec = importlib.util.spec_from_file_location("front_door", ROOT / ".ci" / "front_door.py")
front_door = importlib.util.module_from_spec(spec)
spec.loader.exec_module(front_door)

README = (ROOT / "README.md").read_text(encoding="utf-8")
JOB, TESTS = front_door.commands_of(ROOT / "README.md")


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A folder with the files that decide what is installed."""
    for name in (*front_door.INSTALLS, "README.md"):
        shutil.copyfile(ROOT / name, tmp_path / name)
    return tmp_path


def test_the_commands_are_on_the_first_screen() -> None:
    lines = README.splitlines()
    assert max(lines.index(command) for command in (JOB, TESTS)) < 30


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (JOB, "", "no command for the main job"),
        (TESTS, f"{TESTS}\ntrue", "no command for the tests"),
        ("<!-- .ci/run: the tests -->", "", "no command for the tests"),
        ("mla-harness run\n", "mla-harness list\n", "lacks `mla-harness run`"),
        ("-c constraints.txt", "", "lacks `-c constraints.txt`"),
        (
            "-c constraints.txt",
            "-c constraints.txt --extra-index-url https://example.org",
            "names a second index",
        ),
    ],
)
def test_a_readme_without_them_is_refused_in_one_line(
    project: Path, capsys: pytest.CaptureFixture[str], old: str, new: str, message: str
) -> None:
    assert old in README
    (project / "README.md").write_text(README.replace(old, new), encoding="utf-8")
    assert front_door.main(project / "README.md") == 1
    shown = capsys.readouterr()
    assert message in shown.err and shown.err.count("\n") == 1 and shown.out == ""


def test_a_file_that_names_a_second_index_is_refused(project: Path) -> None:
    with (project / "constraints.txt").open("a") as file:
        file.write("--extra-index-url https://example.org\n")
    with pytest.raises(front_door.FrontDoorError, match=r"^constraints\.txt: names a second index"):
        front_door.commands_of(project / "README.md")


@pytest.fixture
def real_engine(monkeypatch: pytest.MonkeyPatch) -> str:
    """A command in place of the installation of an engine."""
    monkeypatch.setattr(front_door, "REAL_ENGINE", "echo served")
    return front_door.REAL_ENGINE


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("tests", "code", "last"),
    [
        ("echo '= 3 passed, 1 skipped in 2.10s ='", 0, "= 3 passed, 1 skipped in 2.10s ="),
        ("echo '= 1 failed, 3 passed in 2.10s ='; exit 1", 1, "= 1 failed, 3 passed in 2.10s ="),
        ("true", 1, "pytest printed no closing line"),
    ],
)
def test_both_commands_run_in_clones_of_their_own_and_the_closing_line_comes_last(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    real_engine: str,
    tests: str,
    code: int,
    last: str,
) -> None:
    monkeypatch.setenv("PIP_EXTRA_INDEX_URL", "https://example.org")
    job = (
        "test ! -e made && touch made && test -f README.md && test"
        ' "$PIP_NO_CACHE_DIR$PIP_EXTRA_INDEX_URL" = 1'
    )
    monkeypatch.setattr(
        front_door, "commands_of", lambda readme: [job, f"test ! -e made && {{ {tests}; }}"]
    )
    assert front_door.main() == code
    *_, first, second, engine, closing = capsys.readouterr().out.splitlines()
    assert (
        f"exit code 0: {job}" in first
        and f"exit code {code if 'failed' in last else 0}: " in second
    )
    assert engine.endswith(f"exit code 0: {real_engine}") and closing == last


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("ended", "code", "says"),
    [
        (front_door.NOT_INSTALLED, 0, "NOT RUN after "),
        (1, 1, "exit code 1: "),
        (2, 1, "exit code 2: "),
    ],
)
def test_an_engine_that_did_not_install_is_told_and_is_no_pass(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    ended: int,
    code: int,
    says: str,
) -> None:
    monkeypatch.setattr(front_door, "commands_of", lambda readme: ["echo '= 3 passed in 2.10s ='"])
    monkeypatch.setattr(front_door, "REAL_ENGINE", f"exit {ended}")
    assert front_door.main() == code
    line = capsys.readouterr().out.splitlines()[-2]
    assert says in line and ("exit code 0" in line) is False


def test_a_wheel_that_does_not_install_ends_in_the_code_for_it(tmp_path: Path) -> None:
    (tmp_path / ".ci").mkdir()
    shutil.copyfile(ROOT / ".ci" / "real_engine", tmp_path / ".ci" / "real_engine")
    (tmp_path / "python3").write_text("#!/bin/sh\nexit 1\n")
    (tmp_path / "python3").chmod(0o755)
    ended = subprocess.run(
        ["bash", str(tmp_path / ".ci" / "real_engine")],
        env=os.environ | {"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
    )
    assert ended.returncode == front_door.NOT_INSTALLED
    assert "did not install" in ended.stdout
