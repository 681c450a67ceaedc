"""How much work a search may take: processor time, which a busy machine does not stretch."""

from __future__ import annotations

import math
from dataclasses import dataclass

from harness.core.records import CaseResult

WAITING = 20.0
"""A trial that waits, for a GPU or in a kernel that sleeps, costs one WAITING-th of its time by the
clock.
"""


@dataclass(slots=True)
class Budget:
    """The work that is left to a search.

    A search that has used it up ends, so its limit is the same under any load.
    """

    seconds: float = math.inf
    """Processor time of trials, on each of the workers that run side by side."""

    @property
    def is_spent(self) -> bool:
        return self.seconds <= 0

    def charge(self, trial: CaseResult, num_workers: int) -> None:
        """Take what a trial cost.

        A trial whose worker was lost has no processor time; its time by the clock counts.
        """
        work = max(trial.cpu_seconds or trial.seconds, trial.seconds / WAITING)
        self.seconds -= work / num_workers
