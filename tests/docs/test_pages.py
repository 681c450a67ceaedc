"""Pages are short, say first for whom they are, and have the figures of the records."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"
MOST_WORDS = 4000
MOST_NUMBERS = 8
"""Of a paragraph: more belong into a table."""
MOST_WORDS_IN_ALL = 45_000
"""Of all pages, those that a tool writes and the records too. The issues in docs/upstream are texts
for other projects, and no pages of the site.
"""
RECORDS = sorted((DOCS / "data").glob("*.md"))
PAGES = sorted(
    page
    for page in DOCS.rglob("*.md")
    if not {"data", "upstream"} & set(page.relative_to(DOCS).parts)
)


def words(pages: list[Path]) -> dict[str, int]:
    """Page -> its words. A word has a letter or a digit: the bars of a table are none."""
    return {
        page.relative_to(DOCS).as_posix(): sum(
            bool(re.search(r"\w", word)) for word in page.read_text(encoding="utf-8").split()
        )
        for page in pages
    }


def paragraphs(page: str) -> list[str]:
    """The paragraphs and the items of lists of a page, without tables and code."""
    text = re.sub(r"```.*?```|^    .*$", "", page, flags=re.DOTALL | re.MULTILINE)
    parts = re.split(r"\n\s*\n|\n(?=- |\d+\. )", text)
    return [part.strip() for part in parts if part.strip() and not part.strip().startswith("|")]


def numbers(paragraph: str) -> list[str]:
    """The numbers of a paragraph, without those of releases, threads, code and links."""
    named = r"`[^`]*`|\]\([^)]*\)|[\w./-]*#\d+|\b\d+\.\d+\.\d+\b|findings? [\d, and]*\d"
    return re.findall(r"(?<![\w.-])\d[\d,.]*", re.sub(named, "", paragraph))


def first_line(page: str) -> str:
    """The first line of a page below its title."""
    return next(line for line in page.splitlines()[1:] if line.strip())


def figures(page: str, pattern: str) -> list[tuple[str, ...]]:
    """The groups of each place in a page that has the pattern."""
    text = " ".join((DOCS / page).read_text(encoding="utf-8").split())
    return [found if isinstance(found, tuple) else (found,) for found in re.findall(pattern, text)]


def test_no_page_is_long() -> None:
    every = words([*PAGES, *RECORDS])
    assert {page: count for page, count in every.items() if count > MOST_WORDS} == {}


def test_all_pages_together_are_short() -> None:
    assert sum(words([*PAGES, *RECORDS]).values()) <= MOST_WORDS_IN_ALL


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_numbers_stand_in_tables(page: Path) -> None:
    crowded = [
        part
        for part in paragraphs(page.read_text(encoding="utf-8"))
        if len(numbers(part)) > MOST_NUMBERS
    ]
    assert crowded == []


def test_a_paragraph_of_numbers_is_seen() -> None:
    text = "It took 1 s, 2 s, 3.5 s, 4 s, 5 s, 6 s, 7 s, 8 s and 9 s in 0.21.0 (a/b#12, `13`)."
    title, part = paragraphs(f"# Title\n\n{text}\n\n| 1 | 2 |\n")
    assert title == "# Title" and numbers(part) == ["1", "2", "3.5", "4", "5", "6", "7", "8", "9"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(DOCS).as_posix())
def test_a_page_says_first_for_whom_it_is(page: Path) -> None:
    assert first_line(page.read_text(encoding="utf-8")).startswith("For ")


@pytest.mark.parametrize("page", RECORDS, ids=lambda page: page.name)
def test_a_record_says_what_wrote_it(page: Path) -> None:
    """A date, a commit, a release or a command, in the first lines."""
    head = " ".join(page.read_text(encoding="utf-8").split("\n")[:10])
    assert re.search(r"`[^`]+ [^`]*`|commit \w{7}|20\d\d|\d+\.\d+\.\d+", head)


@pytest.mark.parametrize(
    ("record", "pattern"),
    [
        ("data/mutants.md", r"(\d+) of (\d+) mutants"),
        ("data/bugs.md", r"^# Bugs the harness knows .*?(\d+) bugs, injected"),
        ("data/sequences.md", r"(\d+) bugs were planted"),
        ("data/sequences.md", r"(\d+) cases of sequences"),
        ("data/sequences.md", r"missed (\d+)"),
        ("data/outside-score.md", r"(\d+) rows are shown, (\d+) argued, (\d+) not caught"),
        ("data/memory-moves.md", r"(\d+) shapes, (\d+) schedules"),
    ],
)
def test_pages_have_the_figures_of_the_records(record: str, pattern: str) -> None:
    (found,) = figures(record, pattern)
    pages = ["how-it-is-tested.md", "memory-moves.md"]
    text = " ".join((DOCS / page).read_text(encoding="utf-8").replace(",", "") for page in pages)
    assert all(re.search(rf"\b{figure}\b", text) for figure in found)
