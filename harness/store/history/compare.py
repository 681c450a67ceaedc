"""Two runs compared: new failures, fixed ones, and other changes."""

from __future__ import annotations

from dataclasses import dataclass

import pandas as pd

from harness.store.history.entry import CAUGHT, MISSED, Entry, RunEntry

TIME_RATIO = 1.5
TIME_SECONDS = 0.5
"""A time has changed when both the factor and the seconds are reached. Smaller changes are noise."""
GOOD = ["pass", CAUGHT]
BAD = ["fail", "crash", "error", MISSED]
KNOWN = "known"


@dataclass(frozen=True, slots=True)
class Change:
    """One case or fault in two runs. `before` is None when the older run does not have it."""

    key: str
    before: Entry | None
    after: Entry

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
        if self.before is None or "skip" in (self.before.verdict, self.after.verdict):
            return None
        return self.after.seconds - self.before.seconds


@dataclass(frozen=True, slots=True)
class Comparison:
    """The changes from `before` to `after`."""

    before: RunEntry
    after: RunEntry
    new_failures: tuple[Change, ...]
    """Bad now, and good, skipped or not there before."""
    other_failures: tuple[Change, ...]
    """Bad in both with another verdict, another oracle or other memory to blame."""
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
    num_same_failures: int
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


def compare(before: RunEntry, after: RunEntry) -> Comparison:
    """The changes from `before` to `after`. Reads and writes nothing."""
    old, new = _table(before), _table(after)
    table = new.merge(old, how="left", left_index=True, right_index=True, suffixes=("", "_before"))
    was, now = table["verdict_before"], table["verdict"]
    was_bad, is_bad = was.isin(BAD), now.isin(BAD)
    is_other = was_bad & is_bad & _differs(table)
    gain = (table["accuracy"] - table["accuracy_before"]).round(9)
    seconds = table[["seconds", "seconds_before"]].where((was != "skip") & (now != "skip"))
    slowdown = (seconds["seconds"] - seconds["seconds_before"]).abs()
    took_another_time = (slowdown >= TIME_SECONDS) & (seconds.max(axis=1) >= TIME_RATIO * seconds.min(axis=1))

    def changes(rows: pd.Series) -> tuple[Change, ...]:
        found = table.loc[rows.index]
        befores = found["entry_before"].where(found["entry_before"].notna(), None)
        return tuple(map(Change, found.index, befores, found["entry"]))

    return Comparison(
        before=before,
        after=after,
        new_failures=changes(now[is_bad & ~was_bad]),
        other_failures=changes(now[is_other]),
        known=changes(now[(now == KNOWN) & (was != KNOWN)]),
        fixed=changes(now[now.isin(GOOD) & (was_bad | (was == KNOWN))]),
        not_judged=changes(now[(now == "skip") & was.isin([*GOOD, *BAD, KNOWN])]),
        accuracy=changes(gain[gain.abs() > 0].sort_values(kind="stable")),
        time=changes(slowdown[took_another_time].sort_values(ascending=False, kind="stable")),
        num_same_failures=int((was_bad & is_bad & ~is_other).sum()),
        num_same_known=int(((was == KNOWN) & (now == KNOWN)).sum()),
        num_new=len(new.index.difference(old.index)),
        num_gone=len(old.index.difference(new.index)),
        num_shared=len(new.index.intersection(old.index)),
    )


def _table(run: RunEntry) -> pd.DataFrame:
    """A row for each case and each fault, by its key."""
    both: tuple[Entry, ...] = (*run.cases, *run.faults)
    entries = {one.key: one for one in both}
    rows = [
        (one, one.verdict, one.seconds, one.accuracy, frozenset(one.oracles), frozenset(one.blamed))
        for one in entries.values()
    ]
    columns = ["entry", "verdict", "seconds", "accuracy", "oracles", "blamed"]
    table = pd.DataFrame(rows, index=list(entries), columns=columns, dtype=object)
    return table.astype({"seconds": float, "accuracy": float})


def _differs(table: pd.DataFrame) -> pd.Series:
    """Whether a row ended by another verdict, another oracle or other memory to blame, where both runs blame some."""
    blamed, blamed_before = table["blamed"], table["blamed_before"]
    return (
        (table["verdict"] != table["verdict_before"])
        | (table["oracles"] != table["oracles_before"])
        | (blamed.astype(bool) & blamed_before.astype(bool) & (blamed != blamed_before))
    )
