"""Fragments of the changelog: their form, and how they become a section of CHANGELOG.md."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.transcripts import Approved
from tools import changelog

ROOT = Path(__file__).parents[2]


def folder(tmp_path: Path, **texts: str) -> Path:
    """A folder of fragments; `__` in a name stands for its dot, `_` for a hyphen."""
    found = tmp_path / "changelog.d"
    found.mkdir()
    (found / "README.md").write_text("How to write a fragment.\n")
    for name, text in texts.items():
        file = name.replace("__", ".").replace("_", "-")
        (found / f"{file}.md").write_text(text)
    return found


def test_each_fragment_has_one_outcome_a_line_in_120_characters() -> None:
    assert list(changelog.problems(ROOT / "changelog.d")) == []


def test_what_is_not_released_stands_in_fragments_alone() -> None:
    assert "Unreleased" not in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def test_the_readme_of_the_fragments_has_three_lines() -> None:
    lines = (ROOT / "changelog.d" / "README.md").read_text(encoding="utf-8").splitlines()
    assert len(lines) == 3 and max(map(len, lines)) <= changelog.MOST_CHARACTERS


def test_a_fragment_of_another_form_is_refused(tmp_path: Path, approved: Approved) -> None:
    fragments = [
        ("a__fixed", "x" * 120 + ".\n"),
        ("a__fixed", "One thing works. Another does too.\n"),
        ("a__fixed", "- A bullet.\n"),
        ("a__fixed", "A line.\n\nAnother.\n"),
        ("a__fixed", "No full stop\n"),
        ("a__fixed", "No end of the line."),
        ("a__fixed", ""),
        ("a__mended", "A line.\n"),
        ("fixed", "A line.\n"),
    ]
    for number, (name, text) in enumerate(fragments):
        (tmp_path / str(number)).mkdir()
        (problem,) = changelog.problems(folder(tmp_path / str(number), **{name: text}))
        assert problem.startswith(name.replace("__", "."))
        approved(problem, f"{name}: {text[-60:]!r}")


def test_a_release_takes_all_fragments_into_a_section_above_the_older_ones(tmp_path: Path) -> None:
    found = folder(
        tmp_path,
        run_history__fixed="A pipe ends.\n",
        kernels__added="An op.\nA kernel.\n",
        arrays__added="An array.\n",
    )
    log = tmp_path / "CHANGELOG.md"
    log.write_text("# Changelog\n\nOne line an outcome.\n\n## 0.2.0 (2026-11-22)\n\n- Old.\n")
    changelog.release(found, log, "0.3.0 (2026-12-01)")
    assert log.read_text() == (
        "# Changelog\n\nOne line an outcome.\n\n"
        "## 0.3.0 (2026-12-01)\n\n### Added\n\n- An array.\n- An op.\n- A kernel.\n\n"
        "### Fixed\n\n- A pipe ends.\n\n"
        "## 0.2.0 (2026-11-22)\n\n- Old.\n"
    )
    assert [file.name for file in found.iterdir()] == ["README.md"]


@pytest.mark.parametrize("words", [["soon"], ["1.2"], ["1.2.3", "more"]])
def test_other_words_are_told_the_usage_and_change_nothing(words: list[str]) -> None:
    before = (ROOT / "CHANGELOG.md").read_bytes()
    with pytest.raises(SystemExit, match=r"usage: python tools/changelog\.py"):
        changelog.main(words)
    assert (ROOT / "CHANGELOG.md").read_bytes() == before
