"""What a plug-in leaves changed in its process: found around its import and its calls, restored,
and named.

A plug-in shares its process with the reference and the oracles that judge it. On a GPU it also
shares it with its next cases, as a CUDA context takes seconds. So the harness reads what
:mod:`harness.kernels.watched` lists before foreign code runs, reads it again afterwards, and
restores it before it computes anything.

A change is a failure of the plug-in if the harness could not trust what it saw meanwhile. Any other
change is a remark. docs/judge-your-kernel.md says so to authors.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any

from harness.kernels.noted import Noted
from harness.kernels.watched import WATCHED, Watched


@dataclass(frozen=True, slots=True)
class ProcessChange:
    """What foreign code changed:

    `who` "mla_decode/mine", and `what` "set the default dtype to torch.float64".
    """

    who: str
    what: str
    is_failure: bool
    is_restored: bool


_EACH_CALL = tuple(row for row in WATCHED if row.each_call)
_EACH_RUN = tuple(row for row in WATCHED if not row.each_call)

PROCESS_CHANGES: Noted[ProcessChange] = Noted("harness_noted_changes")
"""The changes that are found within a block."""

_constant: dict[str, object] = {}
"""Name of a row that is constant -> its first reading."""


def _before(row: Watched) -> Any:
    if not row.is_constant:
        return row.read()
    if row.name not in _constant:
        _constant[row.name] = row.read()
    return _constant[row.name]


class watching:
    """Restore what foreign code changes within the block, and note it in `PROCESS_CHANGES`.

    `who` runs there. `rows` are what is watched.
    """

    def __init__(self, who: str, rows: Sequence[Watched] = WATCHED) -> None:
        self._who = who
        self.rows = rows

    def __enter__(self) -> None:
        self._limit = sys.getrecursionlimit()
        self._before = [_before(row) for row in self.rows]

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        # First of all: with a low limit, no other call comes to its end.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(self._limit)
        # The limit has just been set back, so what the foreign code left is `limit`.
        after = [limit if row.read is sys.getrecursionlimit else row.read() for row in self.rows]
        for row, old, new in zip(self.rows, self._before, after, strict=True):
            if row.differs(old, new) and (what := row.says(old, new)):
                if row.restore is not None:
                    row.restore(old)
                PROCESS_CHANGES.note(
                    ProcessChange(self._who, what, row.is_failure, row.restore is not None)
                )


def watching_call(who: str) -> watching:
    """As `watching`, for what the harness computes with between two calls."""
    return watching(who, _EACH_CALL)


def watching_run(who: str) -> watching:
    """As `watching`, for what `watching_call` leaves out."""
    return watching(who, _EACH_RUN)
