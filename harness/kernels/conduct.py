"""What a kernel under judgement did besides its work: noted where it is called, judged by oracle
`honest`.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

from harness.memory.graph.launch import holding


@dataclass(frozen=True, slots=True)
class Conduct:
    """One thing that a kernel did.

    `who` is "mla_decode/mine", `what` such as "read the objects of its process with
    gc.get_objects". `is_proof`: no honest kernel does it. Anything else counts only beside an
    output that is wrong. `site` is the output that it is about, such as "output"; empty for none.
    """

    who: str
    what: str
    is_proof: bool
    site: str = ""


_noted: ContextVar[list[Conduct] | None] = ContextVar("harness_noted_conduct", default=None)


@contextmanager
def noting_conduct() -> Iterator[list[Conduct]]:
    """What kernels did within the block, each thing once."""
    found: list[Conduct] = []
    with holding(_noted, found):
        yield found


def note_conduct(one: Conduct) -> None:
    """Add to what is noted around this call, if anything notes."""
    noted = _noted.get()
    if noted is not None and one not in noted:
        noted.append(one)
