"""Put the fragments of changelog.d/ into CHANGELOG.md: python tools/changelog.py VERSION

Without a version the section is printed, and nothing is written. A fragment is a file
TOPIC.KIND.md; changelog.d/README.md says what is in it.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER, CHANGELOG = ROOT / "changelog.d", ROOT / "CHANGELOG.md"
KINDS = ("added", "changed", "fixed", "removed")
"""The kinds of changes, in the order of their headings."""
MOST_CHARACTERS = 120
_NAME = re.compile(rf"[a-z0-9]+(-[a-z0-9]+)*\.({'|'.join(KINDS)})\.md")
_VERSION = re.compile(r"\d+\.\d+\.\d+")
_SENTENCES = re.compile(r"[.!?] [A-Z]")
"""Where one sentence of a line ends and another begins: each is an outcome of its own."""


def fragments(folder: Path) -> list[Path]:
    """The files of `folder` but its README, by name."""
    return sorted(file for file in folder.iterdir() if file.name != "README.md")


def problems(folder: Path) -> Iterator[str]:
    """A line for each thing that is wrong with a fragment of `folder`: where, what, how to mend."""
    for file in fragments(folder):
        if not _NAME.fullmatch(file.name):
            yield f"{file.name}: name it TOPIC.KIND.md, with one of the kinds {', '.join(KINDS)}"
            continue
        text = file.read_text(encoding="utf-8")
        if not text.endswith("\n") or not text.strip():
            yield f"{file.name}: write at least one line, and end the last one"
        for number, line in enumerate(text.splitlines(), 1):
            for problem in _problems_of(line):
                yield f"{file.name}:{number}: {problem}"


def _problems_of(line: str) -> Iterator[str]:
    if len(line) > MOST_CHARACTERS:
        yield f"has {len(line)} characters; say it in {MOST_CHARACTERS}"
    if not line.strip() or line != line.strip() or line.startswith(("- ", "* ", "#")):
        yield "write a plain sentence, without a bullet, a heading, an empty line or spaces around"
    elif not line.endswith("."):
        yield "end the sentence with a full stop"
    if _SENTENCES.search(line):
        yield "two sentences are two outcomes; give each a line"


def section(folder: Path, heading: str) -> str:
    """The section of CHANGELOG.md with all fragments: kinds in their order, then topics by name."""
    parts = [f"## {heading}\n"]
    for kind in KINDS:
        lines = [
            line
            for file in fragments(folder)
            if file.name.endswith(f".{kind}.md")
            for line in file.read_text(encoding="utf-8").splitlines()
        ]
        if lines:
            parts.append(f"### {kind.title()}\n\n" + "".join(f"- {line}\n" for line in lines))
    return "\n".join(parts)


def release(folder: Path, changelog: Path, heading: str) -> None:
    """Write the section above the newest one of `changelog`, and delete the fragments."""
    text = changelog.read_text(encoding="utf-8")
    newest = text.find("\n## ") + 1 or len(text)
    written = section(folder, heading)
    changelog.write_text(
        f"{text[:newest].rstrip()}\n\n{written}\n{text[newest:]}".rstrip() + "\n", encoding="utf-8"
    )
    for file in fragments(folder):
        file.unlink()


def main(words: list[str]) -> None:
    """Do what the words of the command line say. Exits with a line for anything that is wrong."""
    if wrong := list(problems(FOLDER)):
        sys.exit("\n".join(f"changelog.d/{one}" for one in wrong))
    match words:
        case []:
            print(section(FOLDER, "Unreleased"), end="")
        case [version] if _VERSION.fullmatch(version):
            if not fragments(FOLDER):
                sys.exit(f"changelog.d: no fragment, so {version} changes nothing; add one")
            release(FOLDER, CHANGELOG, f"{version} ({datetime.now(UTC):%Y-%m-%d})")
        case _:
            sys.exit("usage: python tools/changelog.py [VERSION], with a version such as 1.2.3")


if __name__ == "__main__":
    main(sys.argv[1:])
