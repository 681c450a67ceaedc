"""Errors that users can see, with their exit codes. Only `cli.main` catches them."""

from __future__ import annotations

INTERRUPTED = 130
"""The exit code of a run that Ctrl-C ended."""


class HarnessError(Exception):
    """Base of all deliberate errors. Its text is one line: where, what, and how to mend it."""

    exit_code = 3


class InputError(HarnessError):
    """The user's input is wrong: a scenario, a selector, an option, a plug-in file. Exit code 2."""

    exit_code = 2


class Refused(HarnessError):
    """An engine refuses the options of a case. The case is skipped, with the engine's words."""


class UnknownNameError(InputError):
    """A name that no registry has. The message gives the nearest names."""


class IllegalAddress(Exception):
    """A kernel indexed memory outside its tensor, as a GPU would fault with `cudaErrorIllegalAddress`.

    Raised by the bounds checks of :mod:`harness.memory.bounds`. It is a finding of the case, never a harness error.
    """

    at = ""
    """See :class:`KernelError`."""


class KernelError(Exception):
    """The kernel under test raised, or broke its contract. A finding of the case, never a harness error."""

    at = ""
    """The last line of the kernel's own file in the stack: `my_kernel.py:20 in decode: raise ValueError()`."""


class CaptureError(Exception):
    """An operation that a graph cannot hold, for example a device value read on the host during capture."""
