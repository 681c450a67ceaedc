"""Verdicts, accuracy and time of the same cases from run to run, and flaky cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from harness.core.fault_outcomes import CAUGHT, MISSED, WRONG_BLAME
from harness.store.history.entry import Entry, PastRuns, RunEntry

LETTERS = {"pass": "p", "fail": "f", "crash": "c", "skip": "s", "error": "e", "known": "k"}
LETTERS |= {CAUGHT: "y", WRONG_BLAME: "b", MISSED: "n"}
ABSENT = "."
"""In place of a verdict: the case was not in that run."""
NUM_RUNS = 30


@dataclass(frozen=True, slots=True)
class Flakiness:
    """How often a case had different verdicts with the same code, seed, device, options and
    versions.
    """

    num_groups: int
    """Groups of at least two runs that are alike in all of these."""
    num_mixed: int
    """Groups with different verdicts."""
    num_runs: int
    """Runs in these groups."""
    verdicts: dict[str, int]

    @property
    def share(self) -> float:
        return self.num_mixed / self.num_groups


@dataclass(frozen=True, slots=True)
class CaseTrend:
    """One case.

    `verdicts`, `seconds` and `accuracies` have an entry for each run of the :class:`Trends`.
    """

    key: str
    """The case id, or `id!fault`."""
    scenario: str
    verdicts: str
    """A letter for each run, see `LETTERS`; a dot for a run without the case."""
    seconds: tuple[float | None, ...]
    accuracies: tuple[float | None, ...]
    """The lowest epoch of each run; None where none was measured."""
    flaky: Flakiness | None = None


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs, oldest first, and the cases in them, those with a fault last."""

    runs: tuple[RunEntry, ...]
    cases: tuple[CaseTrend, ...]

    @property
    def flaky(self) -> tuple[CaseTrend, ...]:
        found = [(-case.flaky.share, case.key, case) for case in self.cases if case.flaky]
        return tuple(case for *_, case in sorted(found, key=lambda one: one[:2]))


def trends_of(run: RunEntry, runs: PastRuns, *, num_runs: int = NUM_RUNS) -> Trends:
    """The cases of `run` over the earlier runs that have some of them, up to and with `run`."""
    past = [*reversed(runs.earlier(run, limit=num_runs - 1)), run]
    return trends_over(past, keys=run.entries)


def trends_over(
    runs: Sequence[RunEntry], name: str = "", *, keys: Iterable[str] | None = None
) -> Trends:
    """The cases over `runs`, which are in order of time.

    `name` selects one scenario or case, `keys` some of them.
    """
    chosen = (
        dict.fromkeys(key for run in runs for key in run.entries)
        if keys is None
        else dict.fromkeys(keys)
    )
    found = []
    for key in sorted(chosen, key=lambda key: "!" in key):
        row = [run.entries.get(key) for run in runs]
        first = next((entry for entry in row if entry), None)
        if first and name in ("", first.scenario, key):
            found.append(_of_case(key, first.scenario, row, runs))
    return Trends(tuple(runs), tuple(found))


def _of_case(
    key: str, scenario: str, row: Sequence[Entry | None], runs: Sequence[RunEntry]
) -> CaseTrend:
    letters = "".join(LETTERS[entry.verdict] if entry else ABSENT for entry in row)
    # A skipped case took no time and measured nothing.
    ran = [entry if entry and entry.verdict != "skip" else None for entry in row]
    seconds = tuple(entry.seconds if entry else None for entry in ran)
    lowest = tuple(entry.accuracy if entry else None for entry in ran)
    return CaseTrend(key, scenario, letters, seconds, lowest, _flakiness(ran, runs))


def _flakiness(ran: Sequence[Entry | None], runs: Sequence[RunEntry]) -> Flakiness | None:
    """How flaky a case is, or None if it is not."""
    groups: dict[tuple[object, ...], Counter[str]] = {}
    for entry, run in zip(ran, runs, strict=True):
        # Without a commit it is unknown whether the code was the same.
        if entry and run.source.commit:
            # `run --fault` and `selftest` write the same key: a verdict in one, an outcome in the
            # other.
            alike = (
                run.source.commit,
                run.source.changes,
                run.variant,
                entry.seed,
                entry.device,
                entry.is_fault,
            )
            groups.setdefault(alike, Counter())[entry.verdict] += 1
    repeated = [counts for counts in groups.values() if counts.total() > 1]
    num_mixed = sum(len(counts) > 1 for counts in repeated)
    total = sum(repeated, Counter[str]())
    return Flakiness(len(repeated), num_mixed, total.total(), dict(total)) if num_mixed else None
