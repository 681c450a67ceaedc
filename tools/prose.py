"""Lint the prose of pages: python tools/prose.py [FILE]...

Without a file: README.md, CONTRIBUTING.md, SECURITY.md and the pages of docs/. Two lists judge
them: proselint's (clichés, redundant and hedging words, repeated words), and that of this project
below, with its limit for the length of a sentence. Code, links and the text for other projects in
docs/upstream are not read. Exit code 1: a line was found, and is printed with its place.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from proselint.checks import __register__ as CHECKS
from proselint.config import DEFAULT, Config
from proselint.registry import CheckRegistry
from proselint.tools import LintFile

ROOT = Path(__file__).parents[1]
MOST_WORDS = 30
"""Of a sentence."""
WORDS = {
    r"in order to": "to",
    r"(?:simply|just|basically|actually|really|obviously|of course|very)": "leave it out",
    r"(?:easy|easily|trivial|trivially)": "say what it takes",
    r"(?:utili[sz]es?|utili[sz]ed|leverag(?:es?|ed|ing))": "use",
    r"(?:robust|powerful|seamless(?:ly)?|state-of-the-art|cutting-edge)": "say what it does",
    r"(?:note that|it should be noted|please note)": "leave it out",
    r"(?:due to the fact that|in the event that)": "because, if",
    r"(?:thereby|whilst|amongst|aforementioned|hereinafter)": "a plain word",
    r"(?:a number of|a lot of|various|several different)": "how many",
    r"(?:we believe|we think|arguably|hopefully)": "say what was seen",
    r"hands? out": "gives",
    r"(?:see to it|to be seen|to be had)": "a verb",
}
"""What must not stand in a page -> what to write in its place."""
OFF = ("typography", "weasel_words")
"""Checks of proselint that are off: quotes and signs as a printer sets them, which is not for
Markdown, and a word that is in the list above.
"""
_LEFT_OUT = re.compile(
    r"^ *```.*?^ *```|^    \S.*?$|<!--.*?-->|\]\([^)]*\)|https?://\S+", re.M | re.S
)
_CODE = re.compile(r"`+[^`\n]+`+")
_WORD = re.compile(rf"\b(?:{'|'.join(WORDS)})\b", re.IGNORECASE)


def prose(page: str) -> str:
    """The page without blocks of code and the targets of links, and with dots, a word, in place of
    code in a sentence. Each word keeps its place.
    """
    text = _LEFT_OUT.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), page)
    return _CODE.sub(lambda found: "·" * len(found[0]), text)


def wordy(text: str) -> Iterator[tuple[int, str]]:
    """The place and the reason of each word of the list."""
    for found in _WORD.finditer(text):
        better = next(
            better
            for words, better in WORDS.items()
            if re.fullmatch(words, found[0], re.IGNORECASE)
        )
        yield found.start(), f"'{found[0]}': {better}"


def long_sentences(text: str) -> Iterator[tuple[int, str]]:
    """The place and the length of each sentence over the limit. A row of a table is none."""
    for part in re.finditer(r"(?:^(?![|#\s]).+\n?(?:^ *(?![-|#*\s]|\d+\.).+\n?)*)", text, re.M):
        begin = part.start()
        for sentence in re.split(r"(?<=[.:;?!])(?=\s)", part[0]):
            count = len(re.findall(r"[\w·][\w·/.,'-]*", sentence))
            if count > MOST_WORDS:
                at = begin + len(sentence) - len(sentence.lstrip())
                yield at, f"a sentence of {count} words, {MOST_WORDS} at most"
            begin += len(sentence)


def proselint(text: str) -> Iterator[tuple[int, str]]:
    """The place and the reason of each finding of proselint."""
    checks = {name: is_on and name not in OFF for name, is_on in DEFAULT["checks"].items()}
    config = Config(max_errors=10_000, checks=checks)
    for found in LintFile("page", text).lint(config):
        # Its text begins with a line break of its own.
        yield found.check_result.span[0] - 1, " ".join(found.check_result.message.split())


def problems(page: str) -> list[tuple[int, str]]:
    """The line and the reason of each finding in a page, in its order."""
    text = prose(page)
    found = sorted([*wordy(text), *long_sentences(text), *proselint(text)])
    return [(text.count("\n", 0, max(place, 0)) + 1, reason) for place, reason in found]


def pages() -> list[Path]:
    """The pages that are read without an argument."""
    docs = sorted((ROOT / "docs").rglob("*.md"))
    own = [page for page in docs if "upstream" not in page.relative_to(ROOT / "docs").parts]
    return [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")] + own


def main(names: list[str]) -> int:
    """Print each finding as FILE:LINE: REASON. Returns the exit code."""
    CheckRegistry().register_many(CHECKS)
    found = False
    for page in [Path(name) for name in names] or pages():
        for line, reason in problems(page.read_text(encoding="utf-8")):
            found = True
            shown = page.relative_to(ROOT) if page.is_relative_to(ROOT) else page
            print(f"{shown}:{line}: {reason}")
    return int(found)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
