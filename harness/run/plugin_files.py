"""Which plug-in file each kernel comes from, so that a case loads the files of its own kernels and
no other.

A file is described in a process of its own: what its import changes reaches no other file. Torch is
not imported here.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from harness.core.cases import Case, CellOf
from harness.core.catalog import planner_of
from harness.core.errors import InputError
from harness.core.move_params import MoveParams

if TYPE_CHECKING:
    from harness.run.pool import JobPool

CHEAP_SECONDS = 0.2
"""A file whose import takes less time of a processor is imported anew for each case.

A fork takes about as long.
"""


class PluginFiles:
    """The plug-in files of a run, and what their kernels declare."""

    def __init__(
        self, files: Iterable[str | Path], pool: JobPool, cell: CellOf | None = None
    ) -> None:
        self.paths = tuple(dict.fromkeys(map(str, files)))
        self._pool = pool
        self._cell = cell
        self._described: list[dict[str, Any]] | None = None
        self._file_of: dict[str, str] = {}
        self._is_cheap: dict[str, bool] = {}

    def describe(self) -> list[dict[str, Any]]:
        """What the kernels of all files declare.

        Raises InputError for a file that does not load, and a name twice.
        """
        if self._described is None:
            self._described = [
                kernel for path in self.paths for kernel in self._describe_file(path)
            ]
        return self._described

    def _describe_file(self, path: str) -> Sequence[dict[str, Any]]:
        kernels = self._pool.describe_kernels((path,), self._cell)
        self._is_cheap[path] = bool(kernels) and all(
            one.pop("import_seconds") < CHEAP_SECONDS for one in kernels
        )
        for kernel in kernels:
            name = f"{kernel['op']}/{kernel['short_name']}"
            if other := self._file_of.get(name):
                raise InputError(
                    f"plug-in {path}: kernel {name!r} is registered already, by {other}; rename one"
                )
            self._file_of[name] = path
        return kernels

    def of_case(self, case: Case) -> tuple[str, ...]:
        """The files that a case needs: those of its kernels and of their planners.

        A case of a connector needs all files, because a file does not tell which connectors it has.
        """
        if (
            isinstance(case.params, MoveParams)
            and case.params.connector != MoveParams.model_fields["connector"].default
        ):
            return self.paths
        planners = (planner_of(spec) for spec in case.known_kernels())
        names = [
            *case.kernels().values(),
            *(planner.name for planner in planners if planner is not None),
        ]
        wanted = {self._file_of[name] for name in names if name in self._file_of}
        return tuple(path for path in self.paths if path in wanted)

    def are_cheap(self, paths: Iterable[str]) -> bool:
        """Whether the import of the files is so quick that each case can have it in a process of
        its own.
        """
        return all(self._is_cheap.get(path, False) for path in paths)
