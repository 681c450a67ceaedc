"""Two runs chosen and compared: new failures, fixed ones, and other changes."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path

from harness.core.errors import InputError
from harness.core.extras import pandas as pd
from harness.core.registry import nearest
from harness.store.history.database import REBUILD, opened, query
from harness.store.history.entry import CAUGHT, MISSED, Entry, FaultEntry, RunEntry, entry_of
from harness.store.history.runs import earlier, newest, number_of, read_run
from harness.store.run_folder import RunStore, find_run

TIME_RATIO = 1.5
TIME_SECONDS = 0.5
"""A time has changed when both the factor and the seconds are reached. Smaller changes are noise."""
GOOD = ["pass", CAUGHT]
BAD = ["fail", "crash", "error", MISSED]
KNOWN = "known"
LATEST, PREVIOUS = "latest", "previous"


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
    lost: dict[str, tuple[str, ...]]
    """Reason -> cases and faults that were good before, and are skipped or missing now. They are regressions."""
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
        lost=_lost(before, after),
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


def _lost(before: RunEntry, after: RunEntry) -> dict[str, tuple[str, ...]]:
    now = {one.key: one for one in after.entries}
    found: dict[str, list[str]] = {}
    for old in before.entries:
        new = now.get(old.key)
        # Another command selects other cases, and a run without any fault does not inject them: they are not missing.
        is_asked = before.command == after.command and not (isinstance(old, FaultEntry) and not after.faults)
        is_gone = new is None and is_asked
        if old.verdict in GOOD and (is_gone or (new is not None and new.verdict == "skip")):
            reason = new.note or "skipped without a reason" if new else f"not in the newer run: {after.command}"
            found.setdefault(reason, []).append(old.key)
    return {reason: tuple(keys) for reason, keys in sorted(found.items(), key=lambda one: -len(one[1]))}


def _table(run: RunEntry) -> pd.DataFrame:
    """A row for each case and each fault, by its key."""
    entries = {one.key: one for one in run.entries}
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


def choose(names: Sequence[str], history: Path | None, root: Path, *, branch: str = "") -> tuple[RunEntry, RunEntry]:
    """The older and the newer run of `names`. No name means `previous latest`; one name is compared with `previous`.

    `latest` is the run that started last. `previous` is the newest earlier run with a case in common, of `branch` if
    one is given. Both pass over runs in which nothing ran. Other names are folders, run ids of the history, or folders
    in `root`. Raises InputError for a run that is missing.
    """
    *first, newer = names or [LATEST]
    (older,) = first or [PREVIOUS]
    if newer == PREVIOUS:
        raise InputError(f"{PREVIOUS}: is the run before the one that it is compared with; write it first")
    with opened(history) if history and history.is_file() else nullcontext() as connection:
        after = _named(newer, connection, root)
        before = _named(older, connection, root) if older != PREVIOUS else _previous(connection, after, branch)
    if before is None:
        where = f" on branch {branch!r}" if branch else ""
        raise InputError(
            f"{PREVIOUS}: the history has no run{where} before {after.run_id} with a case in common; name two runs, or "
            f"take run folders in with: {REBUILD}"
        )
    return before, after


def previous_of(run: RunEntry, history: Path) -> RunEntry | None:
    """The run that `previous` means for `run`, or None when there is none. Raises InputError as :func:`choose` does."""
    with opened(history) as connection:
        return _previous(connection, run)


def _previous(connection: sqlite3.Connection | None, run: RunEntry, branch: str = "") -> RunEntry | None:
    found = earlier(connection, run, branch=branch) if connection else []
    return read_run(connection, found[0]) if connection and found else None


def _named(name: str, connection: sqlite3.Connection | None, root: Path) -> RunEntry:
    if (Path(name) / "run.json").is_file():
        return entry_of(RunStore.open(Path(name)))
    if connection is not None:
        number = newest(connection) if name == LATEST else number_of(connection, name)
        if number is not None:
            return read_run(connection, number)
    if name == LATEST and (folders := sorted(root.glob("*/run.json"), reverse=True)):
        entries = (entry_of(RunStore.open(file.parent)) for file in folders)
        if judged := next((entry for entry in entries if entry.has_judged), None):
            return judged
        raise InputError(f"{LATEST}: nothing ran in the runs of {root}, all was skipped; name two runs")
    if name == LATEST or (root / name / "run.json").is_file():
        return entry_of(RunStore.open(find_run(name, root)))
    known = list(query(connection, "SELECT run_id FROM run")["run_id"]) if connection else []
    is_near = 0 < len(known) <= 5 or nearest(name, known).startswith("did you mean")
    near = f"; {nearest(name, known, see='')}" if is_near else ""
    raise InputError(f"no run {name!r}: give a run id, a run folder, '{LATEST}' or '{PREVIOUS}'{near}")
