"""Two runs chosen and compared: new failures, fixed ones, and other changes."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import InputError
from harness.core.fault_outcomes import CAUGHT, MISSED, WRONG_BLAME
from harness.core.registry import nearest
from harness.store.history.entry import Entry, PastRuns, RunEntry, entry_of
from harness.store.run_folder import RunStore

TIME_RATIO = 1.5
TIME_SECONDS = 0.5
"""A time has changed when both the factor and the seconds are reached.

Smaller changes are noise.
"""
GOOD = ("pass", CAUGHT)
BAD = ("fail", "crash", "error", WRONG_BLAME, MISSED)
KNOWN = "known"
LATEST = "latest"
PREVIOUS = "previous"


@dataclass(frozen=True, slots=True)
class Change:
    """One case or fault in two runs. `before` is None when the older run does not have it."""

    key: str
    before: Entry | None
    after: Entry

    @property
    def was(self) -> str:
        return self.before.verdict if self.before else ""

    @property
    def is_another_failure(self) -> bool:
        """Whether it failed by another verdict, another oracle, or other memory to blame where both
        blame some.
        """
        if not self.before or self.was not in BAD or self.after.verdict not in BAD:
            return False
        blamed = set(self.after.blamed)
        blamed_before = set(self.before.blamed)
        return (
            self.was != self.after.verdict
            or set(self.before.oracles) != set(self.after.oracles)
            or bool(blamed and blamed_before and blamed != blamed_before)
        )

    @property
    def gain(self) -> float | None:
        """How much accuracy rose, negative for a drop; None unless both runs measured it."""
        before = self.before.accuracy if self.before else None
        if before is None or self.after.accuracy is None:
            return None
        return round(self.after.accuracy - before, 9)

    @property
    def slowdown(self) -> float | None:
        """How many seconds longer it took; None unless both runs judged it."""
        if self.before is None or "skip" in (self.was, self.after.verdict):
            return None
        return self.after.seconds - self.before.seconds

    @property
    def took_another_time(self) -> bool:
        if self.before is None or abs(self.slowdown or 0.0) < TIME_SECONDS:
            return False
        # A ratio as well as a difference: a busy machine makes all cases slower by some.
        fast, slow = sorted((self.before.seconds, self.after.seconds))
        return slow >= TIME_RATIO * fast


@dataclass(frozen=True, slots=True)
class RunComparison:
    """The changes from `before` to `after`."""

    before: RunEntry
    after: RunEntry
    new_failures: tuple[Change, ...]
    """Bad now, and good, skipped or not there before."""
    lost: dict[str, tuple[str, ...]]
    """Reason -> cases and faults that were good before, and are skipped or missing now.

    They are regressions.
    """
    other_failures: tuple[Change, ...]
    """Bad in both with another verdict, another oracle or other memory to blame."""
    same_failures: tuple[Change, ...]
    """Bad in both, in the same way."""
    known: tuple[Change, ...]
    """Known failures that were not known or not there before. They are no regressions."""
    fixed: tuple[Change, ...]
    """Good now, and bad or a known failure before."""
    not_judged: tuple[Change, ...]
    """Skipped now, and judged before: neither fixed nor good."""
    accuracy: tuple[Change, ...]
    """The accuracy of the lowest epoch changed; the largest drop first."""
    time: tuple[Change, ...]
    """Much slower or faster; the largest difference first."""
    num_same_known: int
    num_new: int
    """Cases and faults that the older run does not have."""
    num_gone: int
    """Cases and faults that only the older run has."""
    num_shared: int

    @property
    def is_like_with_like(self) -> bool:
        """Whether options, machine and versions are the same in both."""
        return self.before.variant == self.after.variant


def compare(before: RunEntry, after: RunEntry) -> RunComparison:
    """The changes from `before` to `after`. Reads and writes nothing."""
    changes = [Change(key, before.alike(entry), entry) for key, entry in after.entries.items()]
    num_shared = sum(one.before is not None for one in changes)
    bad = [one for one in changes if one.after.verdict in BAD]
    known = [one for one in changes if one.after.verdict == KNOWN]
    return RunComparison(
        before=before,
        after=after,
        new_failures=tuple(one for one in bad if one.was not in BAD),
        lost=_lost(before, after),
        other_failures=tuple(one for one in bad if one.is_another_failure),
        same_failures=tuple(one for one in bad if one.was in BAD and not one.is_another_failure),
        known=tuple(one for one in known if one.was != KNOWN),
        fixed=tuple(
            one for one in changes if one.after.verdict in GOOD and one.was in (*BAD, KNOWN)
        ),
        # A skip hides whether the bug is there, so it counts as neither fixed nor good.
        not_judged=tuple(
            one for one in changes if one.after.verdict == "skip" and one.was not in ("", "skip")
        ),
        accuracy=tuple(
            sorted((one for one in changes if one.gain), key=lambda one: one.gain or 0.0)
        ),
        time=tuple(
            sorted(
                (one for one in changes if one.took_another_time),
                key=lambda one: -abs(one.slowdown or 0.0),
            )
        ),
        num_same_known=sum(one.was == KNOWN for one in known),
        num_new=len(changes) - num_shared,
        num_gone=len(before.entries) - num_shared,
        num_shared=num_shared,
    )


def _lost(before: RunEntry, after: RunEntry) -> dict[str, tuple[str, ...]]:
    found: dict[str, list[str]] = {}
    for old in before.entries.values():
        new = after.alike(old)
        # Another command selects other cases, and a run without any fault does not inject them:
        # they are not missing.
        is_asked = before.command == after.command and not (old.is_fault and not after.faults)
        is_gone = new is None and is_asked
        if old.verdict in GOOD and (is_gone or (new is not None and new.verdict == "skip")):
            reason = (
                new.note or "skipped without a reason"
                if new
                else f"not in the newer run: {after.command}"
            )
            found.setdefault(reason, []).append(old.key)
    return {
        reason: tuple(keys) for reason, keys in sorted(found.items(), key=lambda one: -len(one[1]))
    }


def choose(names: Sequence[str], runs: PastRuns, *, branch: str = "") -> tuple[RunEntry, RunEntry]:
    """The older and the newer run of `names`.

    No name means `previous latest`; one name is compared with `previous`.

    `latest` is the run that started last. `previous` is the newest earlier run with a case in
    common, of `branch` if one is given, and a self-test if the other one is, if there is such a
    run. Both pass over runs in which nothing ran. Other names are run folders, or names in the
    folder of `runs`. Raises InputError for a run that is missing, and for a run and itself.
    """
    *first, newer = names or [LATEST]
    (older,) = first or [PREVIOUS]
    if newer == PREVIOUS:
        raise InputError(
            f"{PREVIOUS}: is the run before the one that it is compared with; write it first"
        )
    after = _named(newer, runs)
    before = _named(older, runs) if older != PREVIOUS else previous_of(after, runs, branch)
    if before is None:
        where = f" on branch {branch!r}" if branch else ""
        raise InputError(
            f"{PREVIOUS}: {runs.root} has no run{where} before {after.run_id} with a case in"
            " common; name two runs"
        )
    if before.run_id == after.run_id:
        raise InputError(
            f"compare: {older!r} and {newer!r} are the same run, {after.run_id}; name two runs"
        )
    return before, after


def previous_of(run: RunEntry, runs: PastRuns, branch: str = "") -> RunEntry | None:
    """The run that `previous` means for `run`, or None when there is none.

    A self-test shares clean cases with a run, but a run is compared with a run if there is one.
    """

    def is_on_branch(one: RunEntry) -> bool:
        return branch in ("", one.source.branch)

    def is_alike(one: RunEntry) -> bool:
        return is_on_branch(one) and one.is_selftest == run.is_selftest

    found = runs.earlier(run, wanted=is_alike) or runs.earlier(run, wanted=is_on_branch)
    return next(iter(found), None)


def last_green(run: RunEntry, runs: PastRuns, counted: Sequence[str]) -> RunEntry | None:
    """The newest run before `run` with a case in common that ran to its end without a verdict in
    `counted`.
    """

    def is_green(one: RunEntry) -> bool:
        is_whole = len(one.cases) == one.num_planned
        return is_whole and not any(entry.verdict in counted for entry in one.entries.values())

    return next(iter(runs.earlier(run, wanted=is_green)), None)


def _named(name: str, runs: PastRuns) -> RunEntry:
    # A link that leads nowhere is a run too, and is refused when it is opened.
    if os.path.lexists(Path(name) / "run.json"):
        return entry_of(RunStore.open(Path(name)))
    if name == LATEST and (newest := next((run for run in runs if run.has_judged), None)):
        return newest
    if found := runs.named(name):
        return found
    # The name may be of a run that could not be read. Then the damage is told.
    if runs.damaged:
        raise InputError(runs.damaged[-1])
    if os.path.lexists(runs.root / name / "run.json"):
        return entry_of(RunStore.open(runs.root / name))
    if name == LATEST and runs.names:
        raise InputError(
            f"{LATEST}: nothing ran in the runs of {runs.root}, all was skipped; name two runs"
        )
    near = nearest(name, runs.names, see="")
    hint = (
        f"; {near}"
        if runs.names and (near.startswith("did you mean") or len(runs.names) <= 5)
        else ""
    )
    raise InputError(
        f"no run {name!r} in {runs.root}: give a run id, a run folder, '{LATEST}' or"
        f" '{PREVIOUS}'{hint}"
    )
