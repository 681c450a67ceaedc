"""Errors that users can see, with their exit codes. Only `cli.main` catches them."""

from __future__ import annotations

import contextlib
import errno
import traceback
from collections.abc import Iterator
from pathlib import Path

from harness.core.cause_codes import Code

INTERRUPTED = 130
"""The exit code of a run that Ctrl-C ended."""


class HarnessError(Exception):
    """Base of all deliberate errors. Its text is one line: where, what, and how to mend it."""

    exit_code = 3


class InputError(HarnessError):
    """The user's input is wrong: a scenario, a selector, an option, a plug-in file. Exit code 2."""

    exit_code = 2


class NoRoomError(HarnessError):
    """A file cannot grow: the disk is full, or a limit is reached. Exit code 3."""


class NoMemoryError(HarnessError):
    """Memory that the harness itself needs for a case does not fit.

    The case is skipped, with the size.
    """


class GoneError(HarnessError):
    """The folder of a run was deleted while the run wrote to it. Exit code 3."""

    def __init__(self, folder: object) -> None:
        super().__init__(
            f"{folder}: deleted or moved during the run; leave it in place, and run the command"
            " again"
        )


@contextlib.contextmanager
def explained_writes(path: Path | None = None, who: str = "the output") -> Iterator[None]:
    """Raise NoRoomError for a full disk or a limit, and GoneError if the folder of `path` is gone.

    The message begins with `path`, or the error's own, or else with `who`.
    """
    try:
        yield
    except OSError as error:
        if path and error.errno == errno.ENOENT:
            raise GoneError(path.parent) from None
        # A full disk, `ulimit -f`, and a user's quota.
        if error.errno not in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT):
            raise
        raise NoRoomError(f"{path or error.filename or who}: {error.strerror}; make room") from None


class BrokenPlugin(InputError):
    """A user's kernel cannot be called at all: its file does not import, or the kernel imports what
    is not there.
    """


class UnknownNameError(InputError):
    """A name that no registry has. The message gives the nearest names."""


class Refused(HarnessError):
    """An engine refuses the options of a case, or a kernel a call.

    The case is skipped, with its words.

    `kernel` is the kernel that refused, as `op/name`; empty for an engine. `shown` has the
    conditions of its call.
    """

    def __init__(self, *words: object) -> None:
        super().__init__(*words)
        self.kernel = ""
        self.shown: dict[str, tuple[str, ...]] = {}


def line_of(frame: traceback.FrameSummary) -> str:
    """A line of code: `my_kernel.py:20 in decode: raise ValueError()`."""
    return f"{frame.filename.rpartition('/')[2]}:{frame.lineno} in {frame.name}: {frame.line}"


MOST_WORDS = 1_000
"""Characters that are kept of a message of foreign code, which may have megabytes."""
LOG_TAIL = 4_000
"""Characters of a traceback that a result keeps."""


def cut(text: str, most: int = MOST_WORDS) -> str:
    """`text`, or its first `most` characters and how many it has."""
    return text if len(text) <= most else f"{text[:most]} … ({len(text):,} characters)"


def message_of(error: BaseException) -> str:
    """The message of an exception of foreign code, cut: it may be long, and `__str__` may raise."""
    try:
        return cut(str(error))
    except Exception as second:
        return f"(no message: its __str__ raised {type(second).__name__})"


def named(error: BaseException) -> str:
    """An exception of foreign code in one line: `ValueError: not today`."""
    return f"{type(error).__name__}: {' '.join(message_of(error).split())}"


def stack_of(error: BaseException) -> str:
    """The traceback of an exception, with messages cut: a log keeps its end, and a long one would
    be all of it.
    """
    return "".join(cut(part) for part in traceback.format_exception(error))


class SystemUnderTestError(Exception):
    """The system under test failed. A finding of the case, never a harness error.

    `cause` is its code, `error` the exception, signal or indexed tensor behind it, `kernel` the
    kernel that raised, and `at` the last line of the kernel's own file in the stack:
    `my_kernel.py:20 in decode: raise ValueError()`.
    """

    def __init__(
        self,
        message: str = "",
        *,
        cause: Code = Code.RAISED,
        error: str = "",
        kernel: str = "",
        at: str = "",
    ) -> None:
        super().__init__(message)
        self.cause = cause
        self.error = error
        self.kernel = kernel
        self.at = at


class IllegalAddress(SystemUnderTestError):
    """A kernel indexed memory outside its tensor, as a GPU would fault with
    `cudaErrorIllegalAddress`.

    Raised by the bounds checks of :mod:`harness.memory.bounds`, for the `tensor` that is indexed.
    """

    def __init__(self, message: str = "", *, tensor: str = "") -> None:
        super().__init__(message, cause=Code.ILLEGAL_ADDRESS, error=tensor)


class KernelError(SystemUnderTestError):
    """The kernel under test raised, or broke its contract."""


class CaptureError(SystemUnderTestError):
    """An operation that a graph cannot hold, for example a device value read on the host during
    capture.
    """

    def __init__(self, message: str = "") -> None:
        super().__init__(message, cause=Code.CAPTURE)
