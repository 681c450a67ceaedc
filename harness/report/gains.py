"""What a machine could judge too if it had one thing more: counted from the skipped cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from harness.core.records import CaseResult, Verdict
from harness.report.wording import num


@dataclass(frozen=True, slots=True)
class Gain:
    """Cases that were skipped for want of the same things, and of nothing else that is known."""

    lacks: tuple[tuple[str, str], ...]
    """Each thing, with the command that brings it, or nothing where no command does."""
    num_cases: int

    @property
    def things(self) -> str:
        """`vLLM and a CUDA GPU`."""
        return " and ".join(thing for thing, _ in self.lacks)

    @property
    def commands(self) -> list[str]:
        return [command for _, command in self.lacks if command]

    @property
    def sentence(self) -> str:
        """`64 more cases with vLLM's Python`."""
        return f"{num(self.num_cases, 'more case')} with {self.things}"


def gains(results: Iterable[CaseResult]) -> list[Gain]:
    """What would let cases be judged: one thing before two, and of these most cases first.

    A case without an entry was skipped for a reason that nothing to install removes.
    """
    counted = Counter(
        # What a command brings stands before a device.
        tuple(sorted(result.lacks.items(), key=lambda thing: (not thing[1], thing[0])))
        for result in results
        if result.verdict is Verdict.SKIP and result.lacks
    )
    found = [Gain(lacks, count) for lacks, count in counted.items()]
    return sorted(found, key=lambda gain: (len(gain.lacks), -gain.num_cases, gain.things))
