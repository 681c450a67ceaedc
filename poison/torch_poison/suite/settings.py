"""The settings of a poisoned pytest run."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path

from torch_poison.errors import SettingError

OFF = "off"
PATTERNS = ("nan", "max", "inf", "random", "zeros")
SITES = {
    "code": "what the code under test allocates",
    "tests": "what the tests themselves allocate, such as a buffer that a kernel is to fill",
    "free": "free CUDA memory, before each test",
}
"""The memory that the plug-in can fill.

It cannot know whether an allocation is an output or scratch.
"""

TEST_FOLDERS = frozenset({"test", "tests", "testing"})


@dataclass(frozen=True, slots=True)
class Settings:
    """The patterns in the order of a test's runs, the sites, and whether two runs are compared."""

    patterns: tuple[str, ...]
    sites: frozenset[str]
    is_diff: bool
    allowed: tuple[str, ...] = ()
    """Lines that may leave memory unwritten, as patterns of `path` or `path:function`."""

    def allows(self, line: str) -> bool:
        """Whether the allow-list has a line (`path:number in function`)."""
        path, _, rest = line.partition(":")
        names = (path, f"{path}:{rest.rpartition(' ')[2]}")
        return any(fnmatchcase(name, f"*{pattern}") for pattern in self.allowed for name in names)


def read(
    poison: str | None, sites: str | None, is_diff: bool, allowed: Sequence[str] = ()
) -> Settings | None:
    """The settings of the options, or None without one, or with `off`.

    Raises SettingError for an unknown word.
    """
    if poison == OFF or (poison is None and not is_diff):
        if sites is not None and poison is None:
            raise SettingError(
                "--poison-sites: needs --poison; for example --poison nan --poison-sites code"
            )
        return None
    patterns = _words("--poison", poison or "nan", PATTERNS)
    if is_diff and len(patterns) == 1:
        patterns = (*patterns, "max" if patterns != ("max",) else "nan")
    words = tuple(word for line in allowed if (word := line.partition("#")[0].strip()))
    places = frozenset(_words("--poison-sites", sites or ",".join(SITES), tuple(SITES)))
    return Settings(patterns, places, is_diff, words)


def _words(option: str, text: str, known: Sequence[str]) -> tuple[str, ...]:
    words = tuple(dict.fromkeys(word.strip() for word in text.split(",") if word.strip()))
    for word in words:
        if word not in known:
            raise SettingError(f"{option}: unknown word {word!r}; {_nearest(word, known)}")
    if not words:
        raise SettingError(f"{option}: no word given (known: {', '.join(known)})")
    return words


def _nearest(word: str, known: Sequence[str]) -> str:
    """A hint such as `did you mean 'nan'?`, or all known words."""
    alike = difflib.get_close_matches(word, known, n=1, cutoff=0.7)
    return f"did you mean {alike[0]!r}?" if alike else f"known: {', '.join(known)}"


class TestFiles:
    """Files of tests: collected files, conftest.py, files named like tests, and files in a folder
    of tests.
    """

    __test__ = False  # pytest would collect the class by its name

    def __init__(self, root: Path) -> None:
        self._root = root
        self.collected: set[str] = set()

    def __call__(self, path: str) -> bool:
        file = Path(path)
        if path in self.collected or file.name == "conftest.py":
            return True
        if file.stem.startswith("test_") or file.stem.endswith("_test"):
            return True
        folders = file.parent.parts
        if "site-packages" in folders:
            # Folders outside of an installed package do not count.
            folders = folders[len(folders) - folders[::-1].index("site-packages") :]
        else:
            folders = (
                file.parent.relative_to(self._root).parts if file.is_relative_to(self._root) else ()
            )
        return not TEST_FOLDERS.isdisjoint(folders)
