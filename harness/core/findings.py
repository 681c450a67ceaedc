"""One violation that an oracle found."""

from __future__ import annotations

from pydantic import Field

from harness.core.params import Record


class Finding(Record):
    """One thing that an oracle found."""

    oracle: str
    site: str | None = None
    tensor: str = ""
    where: str = ""
    bits: str | None = None
    message: str = ""
    cause: str = Field(
        default="", description="what went wrong: a Code, or an engine's own. Old records have none"
    )
    error: str = Field(
        default="",
        description="what ended a crashed run: an exception, a signal, an indexed tensor",
    )
    kernel: str = Field(default="", description="the kernel that raised")
    at: str = Field(
        default="",
        description=(
            "the line of code that raised, or that allocated the memory, with its file and function"
        ),
    )
    excess: float | None = Field(
        default=None, ge=0, description="the error as a multiple of its bound, if there is one"
    )
