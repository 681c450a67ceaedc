"""What a cell answers, as the judge reads it: JSON that a kernel may have written."""

from __future__ import annotations

from typing import Any

from pydantic import Field

from harness.core.params import Record


class Output(Record):
    """An output, as the cell tells it: content at `start` of the arena, or a `problem`.

    `is_cheat`: it is an object that decides itself what torch computes with it.
    """

    problem: str = ""
    is_cheat: bool = False
    dtype: str = ""
    shape: tuple[int, ...] = ()
    device: str = ""
    start: int = -1


class Raised(Record):
    """An exception of the kernel's own code."""

    type: str
    words: str
    line: int = 0
    at: str = ""
    is_refusal: bool = False
    is_import: bool = False
    is_of_judge: bool = False
    """The import was of the judge's code."""
    is_spent: bool = False
    """The device failed for good in this process."""
    stack: str = ""


class Seen(Record):
    """What a kernel did, see :class:`harness.kernels.conduct.Conduct`."""

    what: str
    is_proof: bool
    site: str = ""


class CallAnswer(Record):
    """What a cell answers to a call."""

    outputs: tuple[Output, ...] = ()
    is_several: bool = False
    filled: dict[str, int] = Field(default_factory=dict)
    conduct: tuple[Seen, ...] = ()
    written: dict[int, tuple[int, tuple[tuple[int, int], ...]]] = Field(default_factory=dict)
    """Number of an argument in a large pool -> where it lies now, and the parts of its storage."""
    raised: Raised | None = None
    no_room: str = ""
    """Why the inputs do not fit into the memory of the device."""


class Declared(Record):
    """A kernel of a file: the words of its decorator, and the function."""

    words: dict[str, Any]
    num_positional: int
    function: str
    doc: str = ""
    signature: tuple[tuple[str, str, bool], ...]


class Loaded(Record):
    """What a cell answers to a file."""

    kernels: tuple[Declared, ...] = ()
    functions: tuple[str, ...] = ()
    failed: Raised | None = None
    conduct: tuple[Seen, ...] = ()
