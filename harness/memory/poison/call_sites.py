"""Call sites: the line of the program behind an allocation, its owner (code or tests), and its stack.

Lines have numbers, which fit into the payload of a NaN. Frames of torch, numpy, the standard library and pytest are
passed over: `torch.zeros` called from a test is the test's line.
"""

from __future__ import annotations

import os
import sysconfig
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Literal

Owner = Literal["code", "tests"]

MAX_DEPTH = 80
MAX_STACK = 8
Line = tuple[CodeType, int]


@dataclass(frozen=True, slots=True)
class CallSite:
    """A line that allocates memory: its number (1, 2, …) and its owner."""

    number: int
    owner: Owner
    line: Line


def describe(line: Line) -> str:
    """`path:line in function`."""
    return f"{line[0].co_filename}:{line[1]} in {line[0].co_qualname}"


def _folder(path: str | None) -> str:
    return str(Path(path).resolve()) + "/" if path else "\0"


_UNKNOWN = compile("", "<a thread without Python>", "exec")


class CallSites:
    """The table of lines that allocated.

    `is_test_file` returns whether a path holds tests. Frames in the folders `passed_over` and `calls_tests` are passed
    over, and a stack ends at `calls_tests`.
    """

    def __init__(
        self, is_test_file: Callable[[str], bool], passed_over: Iterable[str], calls_tests: Iterable[str] = ()
    ) -> None:
        self._is_test_file = is_test_file
        self._calls_tests = tuple(_folder(path) for path in calls_tests)
        self._passed_over = (*(_folder(path) for path in passed_over), *self._calls_tests)
        self._library = _folder(sysconfig.get_path("stdlib"))
        self._owners: dict[str, Owner | None] = {}
        self._of_line: dict[Line, CallSite] = {}
        self._of_number: dict[int, CallSite] = {}

    def owner_of(self, path: str) -> Owner | None:
        """The owner of a file; None if it is passed over."""
        try:
            return self._owners[path]
        except KeyError:
            owner = self._owners[path] = self._judge(path)
            return owner

    def _judge(self, path: str) -> Owner | None:
        if path.startswith(self._passed_over) or path.startswith("<frozen"):
            return None
        if path.startswith(self._library) and "-packages" not in path[len(self._library) :]:
            return None
        return "tests" if self._is_test_file(path) else "code"

    def innermost(self, frame: FrameType | None) -> tuple[FrameType | None, Owner]:
        """The innermost frame of the program at or above `frame`, and its owner."""
        for _ in range(MAX_DEPTH):
            if frame is None:
                break
            owner = self.owner_of(frame.f_code.co_filename)
            if owner is not None:
                return frame, owner
            frame = frame.f_back
        return None, "code"

    def note(self, frame: FrameType | None) -> CallSite:
        """The call site of an allocation made in `frame` or below, added if it is new."""
        found = frame
        owner = self._owners.get(frame.f_code.co_filename) if frame is not None else None
        if owner is None:
            found, owner = self.innermost(frame)
        line: Line = (found.f_code, found.f_lineno) if found is not None else (_UNKNOWN, 0)
        site = self._of_line.get(line)
        if site is None:
            site = CallSite(len(self._of_line) + 1, owner, line)
            self._of_line[line] = self._of_number[site.number] = site
        return site

    def numbered(self, number: int) -> CallSite | None:
        """The call site with this number, or None."""
        return self._of_number.get(number)

    def stack(self, frame: FrameType | None) -> tuple[Line, ...]:
        """The program's lines at and above `frame`, innermost first, up to the one called from `calls_tests`."""
        stack: list[Line] = []
        while frame is not None and len(stack) < MAX_STACK:
            path = frame.f_code.co_filename
            if path.startswith(self._calls_tests):
                break
            if self.owner_of(path) is not None:
                stack.append((frame.f_code, frame.f_lineno))
            frame = frame.f_back
        return tuple(stack)


def frame_of(code: CodeType, frame: FrameType | None) -> FrameType | None:
    """The nearest frame at or above `frame` that runs `code`."""
    for _ in range(MAX_DEPTH):
        if frame is None or frame.f_code is code:
            return frame
        frame = frame.f_back
    return None


def short(place: str) -> str:
    """A place relative to the working folder, if it lies below."""
    path, rest, tail = place.partition(":")
    with_folder = Path(path)
    folder = Path(os.getcwd())
    return f"{with_folder.relative_to(folder) if with_folder.is_relative_to(folder) else path}{rest}{tail}"
