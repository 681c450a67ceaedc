"""The errors of the poison. Importing this module loads no torch."""

from __future__ import annotations


class PoisonError(Exception):
    """A setting, a machine or a driver that the poison cannot work with.

    Its text is one line: where, what, and how to mend it.
    """


class SettingError(PoisonError):
    """A word of an option or of `pytest.ini` that the plug-in does not know."""


class IllegalAddress(Exception):
    """Code indexed memory outside its tensor, as a GPU would fault with `cudaErrorIllegalAddress`.

    The fault is one of the code under test, so it is no :class:`PoisonError`. `tensor` is what the
    caller of the check calls the indices.
    """

    def __init__(self, message: str = "", *, tensor: str = "") -> None:
        super().__init__(message)
        self.tensor = tensor
