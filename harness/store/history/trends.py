"""Verdicts, accuracy and time of the same cases from run to run, and flaky cases."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from harness.store.history.entry import CAUGHT, Entry, RunEntry
from harness.store.history.runs import PastRuns

LETTERS = {"pass": "p", "fail": "f", "crash": "c", "skip": "s", "error": "e", "known": "k"}
ABSENT = "."
"""In place of a verdict: the case was not in that run."""
NUM_RUNS = 30


@dataclass(frozen=True, slots=True)
class Flakiness:
    """How often a case had different verdicts with the same code, seed, device, options and versions."""

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
    """One case. `verdicts`, `seconds` and `accuracies` have an entry for each run of the :class:`Trends`."""

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
class ScenarioTrend:
    """A scenario's cases together; everything is aligned with the runs."""

    scenario: str
    num_passed: tuple[int, ...]
    num_failed: tuple[int, ...]
    """Failed, crashed, or not to be judged."""
    num_skipped: tuple[int, ...]
    seconds: tuple[float | None, ...]
    accuracies: tuple[float | None, ...]
    """The lowest epoch of any case."""
    num_known: tuple[int, ...]
    """Failed as known."""


@dataclass(frozen=True, slots=True)
class FaultTrend:
    """A fault injected in one case; everything is aligned with the runs."""

    fault: str
    case: str
    scenario: str
    outcomes: str
    """`y` caught, `n` not caught, a dot for a run without the fault."""
    seconds: tuple[float | None, ...]


@dataclass(frozen=True, slots=True)
class Trends:
    """Runs, oldest first, and the cases and faults in them."""

    runs: tuple[RunEntry, ...]
    scenarios: tuple[ScenarioTrend, ...]
    cases: tuple[CaseTrend, ...]
    faults: tuple[FaultTrend, ...] = ()

    @property
    def flaky(self) -> tuple[CaseTrend, ...]:
        """The flaky cases, worst first."""
        return tuple(
            sorted(
                (case for case in self.cases if case.flaky),
                key=lambda case: (-case.flaky.share if case.flaky else 0.0, case.key),
            )
        )


def trends_of(run: RunEntry, runs: PastRuns, *, num_runs: int = NUM_RUNS) -> Trends:
    """The cases of `run` over the earlier runs that have some of them, up to and with `run`."""
    past = [*reversed(runs.earlier(run, limit=num_runs - 1)), run]
    return trends_over(past, keys=run.entries)


def trends_over(runs: Sequence[RunEntry], name: str = "", *, keys: Iterable[str] | None = None) -> Trends:
    """The cases and faults over `runs`, which are in order of time.

    `name` selects one scenario or case, `keys` some cases and faults.
    """
    chosen = dict.fromkeys(key for run in runs for key in run.entries) if keys is None else dict.fromkeys(keys)
    by_kind: dict[bool, dict[str, list[Entry | None]]] = {False: {}, True: {}}
    scenarios: dict[str, list[list[Entry | None]]] = {}
    # `run --fault` and `selftest` write the same key: a verdict of a case in one, an outcome of a fault in the other.
    for key, is_fault in product(chosen, (False, True)):
        found = [run.entries.get(key) for run in runs]
        row = [entry if entry and entry.is_fault == is_fault else None for entry in found]
        first = next((entry for entry in row if entry), None)
        if first and name in ("", first.scenario, key):
            by_kind[is_fault][key] = row
            if not is_fault:
                scenarios.setdefault(first.scenario, []).append(row)
    return Trends(
        runs=tuple(runs),
        scenarios=tuple(_of_scenario(scenario, rows) for scenario, rows in scenarios.items()),
        cases=tuple(_of_case(key, row, runs) for key, row in by_kind[False].items()),
        faults=tuple(_of_fault(key, row) for key, row in sorted(by_kind[True].items())),
    )


def _ran(entry: Entry | None) -> Entry | None:
    """The entry, unless it was skipped: then it took no time and measured nothing."""
    return entry if entry and entry.verdict != "skip" else None


def _seconds(row: Sequence[Entry | None]) -> tuple[float | None, ...]:
    return tuple(entry.seconds if (entry := _ran(one)) else None for one in row)


def _accuracies(row: Sequence[Entry | None]) -> tuple[float | None, ...]:
    return tuple(entry.accuracy if (entry := _ran(one)) else None for one in row)


def _of_case(key: str, row: Sequence[Entry | None], runs: Sequence[RunEntry]) -> CaseTrend:
    letters = "".join(LETTERS[entry.verdict] if entry else ABSENT for entry in row)
    scenario = next(entry.scenario for entry in row if entry)
    return CaseTrend(key, scenario, letters, _seconds(row), _accuracies(row), _flakiness(row, runs))


def _of_fault(key: str, row: Sequence[Entry | None]) -> FaultTrend:
    case, _, fault = key.rpartition("!")
    outcomes = "".join(ABSENT if entry is None else "y" if entry.verdict == CAUGHT else "n" for entry in row)
    scenario = next(entry.scenario for entry in row if entry)
    return FaultTrend(fault, case, scenario, outcomes, _seconds(row))


def _of_scenario(scenario: str, rows: Sequence[Sequence[Entry | None]]) -> ScenarioTrend:
    by_run = [[entry for entry in column if entry] for column in zip(*rows, strict=True)]

    def count(*verdicts: str) -> tuple[int, ...]:
        return tuple(sum(entry.verdict in verdicts for entry in entries) for entries in by_run)

    ran = [[entry for entry in entries if _ran(entry)] for entries in by_run]
    measured = [[entry.accuracy for entry in entries if entry.accuracy is not None] for entries in ran]
    return ScenarioTrend(
        scenario=scenario,
        num_passed=count("pass"),
        num_failed=count("fail", "crash", "error"),
        num_skipped=count("skip"),
        seconds=tuple(round(sum(entry.seconds for entry in entries), 3) if entries else None for entries in ran),
        accuracies=tuple(min(values, default=None) for values in measured),
        num_known=count("known"),
    )


def _flakiness(row: Sequence[Entry | None], runs: Sequence[RunEntry]) -> Flakiness | None:
    """How flaky a case is, or None if it is not."""
    groups: dict[tuple[object, ...], Counter[str]] = {}
    for entry, run in zip(row, runs, strict=True):
        # Without a commit it is unknown whether the code was the same.
        if _ran(entry) and entry and run.source.commit:
            alike = (run.source.commit, run.source.changes, run.variant, entry.seed, entry.device)
            groups.setdefault(alike, Counter())[entry.verdict] += 1
    repeated = [counts for counts in groups.values() if counts.total() > 1]
    num_mixed = sum(len(counts) > 1 for counts in repeated)
    total = sum(repeated, Counter[str]())
    return Flakiness(len(repeated), num_mixed, total.total(), dict(total)) if num_mixed else None
