"""Two runs side by side: what fails now and did not, what was mended, and what else is not as it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from harness.store.history.entry import RunEntry

TIME_RATIO = 1.5
TIME_SECONDS = 0.5
"""A case is slower or faster when it is so by this factor and by so many seconds: less is the machine's mood."""
CAUGHT, MISSED = "caught", "missed"
"""The verdicts of a fault that was put back."""
GOOD = ("pass", CAUGHT)
BAD = ("fail", "crash", "error", MISSED)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one case or fault in one run."""

    verdict: str
    seconds: float
    accuracy: float | None = None
    """The lowest epoch."""
    note: str = ""
    oracles: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Change:
    """One case or fault in two runs; `before` is None for one that the older run did not have."""

    key: str
    scenario: str
    before: Outcome | None
    after: Outcome


@dataclass(frozen=True, slots=True)
class Comparison:
    """Two runs, the older first; what is not listed or counted is as it was."""

    before: RunEntry
    after: RunEntry
    new_failures: tuple[Change, ...]
    """Bad now, and good, skipped or not there before."""
    other_failures: tuple[Change, ...]
    """Bad in both, but not in the same way: another verdict, another oracle, other memory to blame."""
    fixed: tuple[Change, ...]
    not_judged: tuple[Change, ...]
    """Skipped now, and judged before: neither mended nor good."""
    accuracy: tuple[Change, ...]
    """The lowest epoch is another one; the largest drop first."""
    time: tuple[Change, ...]
    """Much slower or faster; the largest difference first."""
    num_same_failures: int
    num_new: int
    """Cases and faults that the older run does not have."""
    num_gone: int
    """Cases and faults that only the older run has."""
    num_shared: int

    @property
    def is_like_with_like(self) -> bool:
        """Whether options, machine and versions are the same in both."""
        return self.before.variant == self.after.variant


def compare(before: RunEntry, after: RunEntry) -> Comparison:
    """What changed from `before` to `after`. Pure: nothing is read or written."""
    old, new = _outcomes(before), _outcomes(after)
    changes = [
        Change(key, scenario, old[key][1] if key in old else None, outcome) for key, (scenario, outcome) in new.items()
    ]
    both_bad = [one for one in changes if _was(one, BAD) and one.after.verdict in BAD]
    other = [one for one in both_bad if _is_other_failure(one)]
    return Comparison(
        before=before,
        after=after,
        new_failures=_those(changes, lambda one: one.after.verdict in BAD and not _was(one, BAD)),
        other_failures=tuple(other),
        fixed=_those(changes, lambda one: one.after.verdict in GOOD and _was(one, BAD)),
        not_judged=_those(changes, lambda one: one.after.verdict == "skip" and _was(one, (*BAD, *GOOD))),
        accuracy=tuple(sorted(_those(changes, lambda one: gain(one) not in (None, 0.0)), key=lambda o: gain(o) or 0.0)),
        time=tuple(sorted(_those(changes, _took_another_time), key=lambda one: -abs(slowdown(one) or 0.0))),
        num_same_failures=len(both_bad) - len(other),
        num_new=len(new.keys() - old.keys()),
        num_gone=len(old.keys() - new.keys()),
        num_shared=len(old.keys() & new.keys()),
    )


def gain(change: Change) -> float | None:
    """How much accuracy rose, negative for a drop; None unless both runs measured it."""
    before = change.before.accuracy if change.before else None
    if before is None or change.after.accuracy is None:
        return None
    return round(change.after.accuracy - before, 9)


def slowdown(change: Change) -> float | None:
    """How many seconds longer it took; None unless both runs judged it."""
    if change.before is None or "skip" in (change.before.verdict, change.after.verdict):
        return None
    return change.after.seconds - change.before.seconds


def _took_another_time(change: Change) -> bool:
    longer = slowdown(change)
    if change.before is None or longer is None or abs(longer) < TIME_SECONDS:
        return False
    low, high = sorted((change.before.seconds, change.after.seconds))
    return high >= TIME_RATIO * low


def _is_other_failure(change: Change) -> bool:
    before, after = change.before, change.after
    if before is None:
        return False
    blames_other = bool(before.blamed and after.blamed) and set(before.blamed) != set(after.blamed)
    return before.verdict != after.verdict or set(before.oracles) != set(after.oracles) or blames_other


def _was(change: Change, verdicts: Iterable[str]) -> bool:
    return change.before is not None and change.before.verdict in verdicts


def _those(changes: Iterable[Change], wanted: Callable[[Change], bool]) -> tuple[Change, ...]:
    return tuple(change for change in changes if wanted(change))


def _outcomes(run: RunEntry) -> dict[str, tuple[str, Outcome]]:
    """Scenario and outcome by key: a fault put back is as much a thing to be right about as a case."""
    found = {
        case.key: (
            case.scenario,
            Outcome(case.verdict, case.seconds, case.accuracy, case.note, case.oracles, case.blamed),
        )
        for case in run.cases
    }
    for fault in run.faults:
        # The fallen accuracy of a fault is what it is for: it is no drop of anything.
        verdict = CAUGHT if fault.caught else MISSED
        outcome = Outcome(verdict, fault.seconds, None, fault.note, fault.by, fault.blamed)
        found[fault.key] = (fault.scenario, outcome)
    return found
