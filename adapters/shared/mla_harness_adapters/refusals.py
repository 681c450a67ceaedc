"""How an engine that does not start says that it refuses its options, and how a process of it says
that it cannot install the plan.

A refusal is written to a file, because an engine may kill the process that could report it. Where
the harness has no hook in a process, the last error of the log is read in place of the file.
Whatever else goes wrong at the start is a crash.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from harness.api import HarnessError, InputError, KernelError, Refused, write_atomic

PLAN_FILE = "refused-plan.txt"
"""Why a process could not install the plan, in the plan's folder."""
OPTIONS_FILE = "refused-options.txt"
"""Why the engine refuses its options, in the plan's folder."""
MAX_WORDS = 500
"""The most characters of a refusal that a message repeats."""


@dataclass(frozen=True, slots=True)
class OptionErrors:
    """The errors with which an engine called `title` checks its options.

    `patterns` has the name of an error, and a regular expression that its message must match from
    its beginning. An error of a derived class counts as its base.
    """

    title: str
    patterns: Mapping[str, str]

    def has(self, error: BaseException) -> bool:
        """Whether the error says that the engine refuses its options."""
        names = {kind.__name__ for kind in type(error).__mro__}
        return any(
            name in names and re.match(pattern, str(error))
            for name, pattern in self.patterns.items()
        )

    @contextlib.contextmanager
    def noted(self, folder: str) -> Iterator[None]:
        """Note a refusal of options that is raised within the block. The error goes on."""
        try:
            yield
        except Exception as error:
            if self.has(error):
                note(folder, OPTIONS_FILE, error)
            raise

    def found_in(self, folder: Path) -> HarnessError | None:
        """The refusal that was noted in the folder; None if none was."""
        plan = folder / PLAN_FILE
        if plan.is_file():
            return InputError(plan.read_text(encoding="utf-8")[:MAX_WORDS])
        options = folder / OPTIONS_FILE
        return self._refused(options.read_text(encoding="utf-8")) if options.is_file() else None

    def of_log(self, error: KernelError) -> Refused | None:
        """The refusal in an error that has the last words of a log; None if there is none."""
        named = "|".join(f"{name}: (?={pattern})" for name, pattern in self.patterns.items())
        words = re.search(f"(?:{named}).*", str(error))
        return self._refused(words[0]) if words else None

    def _refused(self, words: str) -> Refused:
        return Refused(f"{self.title} refuses these options: {words[:MAX_WORDS]}")


def clear(folder: Path) -> None:
    """Delete the refusals that are noted in a folder."""
    for name in (PLAN_FILE, OPTIONS_FILE):
        (folder / name).unlink(missing_ok=True)


def note(folder: str, file: str, error: BaseException) -> None:
    """Write the message of a refusal to a file of the plan's folder, on one line."""
    write_atomic(Path(folder) / file, " ".join(str(error).split()) or type(error).__name__)
