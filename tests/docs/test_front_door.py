"""`.ci/run` takes the README's two commands, and refuses a README without them in one line."""

from __future__ import annotations

import importlib.util
import shutil
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
    *_, first, second, closing = capsys.readouterr().out.splitlines()
    assert (
        f"exit code 0: {job}" in first
        and f"exit code {code if 'failed' in last else 0}: " in second
    )
    assert closing == last
