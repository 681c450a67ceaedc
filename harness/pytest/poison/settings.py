"""What the options of a poisoned pytest run ask for; no torch."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import InputError

PATTERNS = ("nan", "max", "inf", "random", "zeros")
SITES = {
    "code": "what the code under test allocates",
    "tests": "what the tests themselves allocate, such as a buffer that a kernel is to fill",
    "free": "free CUDA memory, before each test",
}
"""Kinds of memory that the plug-in can fill. Whether an allocation is an output or scratch cannot be known here."""

TEST_FOLDERS = frozenset({"test", "tests", "testing"})


@dataclass(frozen=True, slots=True)
class Settings:
    """Patterns in the order in which each test runs under them, sites, and whether two runs are compared."""

    patterns: tuple[str, ...]
    sites: frozenset[str]
    is_diff: bool


def read(poison: str | None, sites: str | None, is_diff: bool) -> Settings | None:
    """The settings of the three options; None when none was given. Raises InputError for a word that is none."""
    if poison is None and not is_diff:
        if sites is not None:
            raise InputError("--poison-sites: needs --poison; for example --poison nan --poison-sites code")
        return None
    patterns = _words("--poison", poison or "nan", PATTERNS)
    if is_diff and len(patterns) == 1:
        patterns = (*patterns, "max" if patterns != ("max",) else "nan")
    return Settings(patterns, frozenset(_words("--poison-sites", sites or ",".join(SITES), tuple(SITES))), is_diff)


def _words(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in words:
        if word not in known:
            near = difflib.get_close_matches(word, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else ""
            raise InputError(f"{option}: unknown word {word!r}{hint} (known: {', '.join(known)})")
    if not words:
        raise InputError(f"{option}: no word given (known: {', '.join(known)})")
    return words


class TestFiles:
    """Which files hold tests: collected ones, conftest.py, those named like tests, those in a folder of tests."""

    __test__ = False  # the name is no test class for pytest

    def __init__(self, root: Path) -> None:
        self._root = root
        self.collected: set[str] = set()

    def __call__(self, path: str) -> bool:
        file = Path(path)
        if path in self.collected or file.name == "conftest.py":
            return True
        if file.stem.startswith("test_") or file.stem.endswith("_test"):
            return True
        parts = list(file.parent.parts)
        if "site-packages" in parts:
            # What is installed counts from its own package on.
            parts = parts[len(parts) - parts[::-1].index("site-packages") :]
        elif file.is_relative_to(self._root):
            parts = list(file.parent.relative_to(self._root).parts)
        else:
            parts = []
        return not TEST_FOLDERS.isdisjoint(parts)
