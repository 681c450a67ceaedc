"""What a kernel does in its cell besides its work, as far as Python shows it.

The cell belongs to the kernel, so a kernel that knows this file can hide from it. It gains nothing
by that: the verdict comes from the bytes that it returns. What is seen here names the reason.
"""

from __future__ import annotations

import os
import sys
import sysconfig
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, TypedDict

import torch
import torch_poison

from harness.kernels.watched import WATCHED, Watched


class ToldConduct(TypedDict):
    """Something that the kernel did, as JSON: see :class:`harness.kernels.conduct.Conduct`."""

    what: str
    is_proof: bool
    site: str


MOST_TOLD = 20
_OBJECTS = ("gc.get_objects", "gc.get_referrers", "gc.get_referents")
_HOOKS = ("sys._getframe", "sys._current_frames", "sys.settrace", "sys.setprofile")
_NETWORK = ("socket.connect", "socket.bind", "socket.getaddrinfo", "socket.sendto")
_MEMORY_CALLS = ("ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd")
_LIBRARIES = tuple(
    {
        os.path.realpath(path) + os.sep
        for path in (
            *(sysconfig.get_paths()[name] for name in ("stdlib", "platstdlib")),
            *(path for path in sys.path if "-packages" in path),
            *torch.__path__,
            *torch_poison.__path__,
        )
    }
)
"""Folders whose code is not the kernel's own."""
_OPENERS = tuple(f"{os.sep}{name}" for name in ("pathlib.py", "shutil.py", "codecs.py", "io.py"))
"""Files of Python that open what their caller asks for. Others open files for a traceback."""


def _clocks() -> tuple[Any, ...]:
    return (
        time.time,
        time.time_ns,
        time.perf_counter,
        time.perf_counter_ns,
        time.monotonic,
        torch.cuda.synchronize,
        torch.cuda.Event.elapsed_time,
        torch.cuda.Event.record,
        torch.cuda.Event.synchronize,
    )


def _set_clocks(wanted: tuple[Any, ...]) -> None:
    (
        time.time,
        time.time_ns,
        time.perf_counter,
        time.perf_counter_ns,
        time.monotonic,
        torch.cuda.synchronize,
        torch.cuda.Event.elapsed_time,  # type: ignore[method-assign]
        torch.cuda.Event.record,  # type: ignore[method-assign]
        torch.cuda.Event.synchronize,  # type: ignore[method-assign]
    ) = wanted


def _other_clocks(before: tuple[Any, ...], after: tuple[Any, ...]) -> bool:
    # By identity: what replaced a function may claim to be equal to it.
    return any(old is not new for old, new in zip(before, after, strict=True))


_REPLACEABLE = (
    *(row for row in WATCHED if row.is_failure),
    Watched(
        "clocks",
        "a replaced clock measures what it likes",
        _clocks,
        _set_clocks,
        lambda before, after: "replaced a clock",
        _other_clocks,
        is_failure=True,
    ),
)
"""Parts of the process that other code computes or measures with."""


class Watch:
    """Notes what the kernel does while it runs. There is one for the process, as a hook stays."""

    def __init__(self, hidden: str) -> None:
        """`hidden` is the folder of the judge's code."""
        self._hidden = os.path.realpath(hidden) + os.sep
        self._is_on = False
        self._found: dict[tuple[str, str], bool] = {}
        self._before = [row.read() for row in _REPLACEABLE]
        self._events: dict[str, Callable[[str, tuple[Any, ...]], None]] = {
            "open": self._opened,
            "ctypes.dlsym": self._looked_up,
            "os.kill": self._signalled,
            **dict.fromkeys(_OBJECTS, self._read_objects),
            **dict.fromkeys(_HOOKS, self._hooked),
            **dict.fromkeys(_NETWORK, self._asked_network),
        }
        # Python never removes an audit hook. So the hook stays, and a flag says whether it looks.
        sys.addaudithook(self._hook)

    @contextmanager
    def on(self) -> Iterator[None]:
        """Watch the code within the block. What it replaced is restored behind it."""
        # A kernel that draws random numbers is no cheat by that alone, but its result may change by
        # the call.
        random = torch.get_rng_state()
        self._is_on = True
        try:
            yield
        finally:
            self._is_on = False
            self._put_back()
            if not torch.equal(random, torch.get_rng_state()):
                self.note("used torch's random numbers", is_proof=False)

    def told(self) -> list[ToldConduct]:
        """What was noted since the last call of this."""
        found = [
            ToldConduct(what=what, is_proof=is_proof, site=site)
            # A kernel may do a thing a million times. Each is noted once, and the list has an end.
            for (what, site), is_proof in list(self._found.items())[:MOST_TOLD]
        ]
        self._found.clear()
        return found

    def note(self, what: str, *, is_proof: bool = True, site: str = "") -> None:
        """Note one thing, such as "replaced a clock"; see `ToldConduct`."""
        self._found.setdefault((what, site), is_proof)

    def imported(self, name: str) -> None:
        """Note an import of the judge's code, which is not there."""
        if self._is_on:
            self.note(f"looked for the judge's code: import {name}")

    def _put_back(self) -> None:
        for row, before in zip(_REPLACEABLE, self._before, strict=True):
            after = row.read()
            if row.differs(before, after) and (what := row.says(before, after)):
                self.note(what)
                if row.restore is not None:
                    row.restore(before)

    def _hook(self, event: str, args: tuple[Any, ...]) -> None:
        if not self._is_on or event not in self._events:
            return
        # What is done here would raise events too.
        self._is_on = False
        try:
            self._events[event](event, args)
        finally:
            self._is_on = True

    def _opened(self, event: str, args: tuple[Any, ...]) -> None:
        # A descriptor that is open already.
        if not isinstance(args[0], str | bytes):
            return
        path = os.path.abspath(os.fsdecode(args[0]))
        # Python itself opens source files, to show the lines of a traceback.
        if path.startswith(self._hidden) and _is_own(_caller(_OPENERS)):
            self.note("looked for the judge's code: open of a file of it")
        parts = path.split("/")
        if parts[1:2] == ["proc"] and len(parts) > 3:
            is_own = parts[2] in ("self", "thread-self", str(os.getpid()))
            # The judge holds the expected values in memory of another process.
            if parts[-1] == "mem" or (parts[2].isdigit() and not is_own):
                self.note(
                    f"read the memory of processes: open of {'/'.join(parts[:2])}/…/{parts[-1]}"
                )

    def _looked_up(self, event: str, args: tuple[Any, ...]) -> None:
        if args[1] in _MEMORY_CALLS:
            self.note(f"reached for the memory of processes: {args[1]}")

    def _signalled(self, event: str, args: tuple[Any, ...]) -> None:
        # A worker that is ended by a signal looks like a crash of the judge.
        if args[0] != os.getpid() and _is_own(_caller()):
            self.note("sent a signal to another process")

    def _read_objects(self, event: str, args: tuple[Any, ...]) -> None:
        if _is_own(_caller()):
            self.note(f"searched the objects of its process: {event}")

    def _hooked(self, event: str, args: tuple[Any, ...]) -> None:
        if _is_own(_caller()):
            self.note(f"searched the calls around it: {event}")

    def _asked_network(self, event: str, args: tuple[Any, ...]) -> None:
        self.note(f"asked the network: {event}")


def _caller(through: tuple[str, ...] = ()) -> FrameType | None:
    """The frame that raised the event: the first one outside of this file, and of files whose names
    end as one of `through`.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None and (
        frame.f_code.co_filename == __file__ or frame.f_code.co_filename.endswith(through)
    ):
        frame = frame.f_back
    return frame


def _is_own(frame: FrameType | None) -> bool:
    """Whether a frame is of the kernel's file, or of one beside it."""
    if frame is None:
        return False
    name = frame.f_code.co_filename
    return not name.startswith("<frozen") and not os.path.realpath(name).startswith(_LIBRARIES)
