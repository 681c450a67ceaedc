"""Runs of the past: facts and results of each, read from the summary in its folder, and which came
before one.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from harness.core.errors import InputError
from harness.core.fault_outcomes import CAUGHT, MISSED, WRONG_BLAME, fault_outcome
from harness.core.records import Verdict
from harness.core.stored import read_json, value_of
from harness.store.run_folder import RunStore, folders_with
from harness.store.source import Source
from harness.store.summary import SUMMARY, shown_verdicts, summarise

MAX_NOTE = 400
"""Characters kept of a reason; the run folder has all of it."""
FAULT_VERDICTS = (CAUGHT, WRONG_BLAME, MISSED)


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished case of a run, or one fault that a selftest injected in a case."""

    key: str
    """The case id, or `id!fault` where a fault was injected."""
    scenario: str
    verdict: str
    """Of a case as everywhere; of a fault one of FAULT_VERDICTS."""
    seconds: float = 0.0
    seed: int = 0
    device: str = "cpu"
    note: str = ""
    """Why it did not pass, in one line."""
    oracles: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    accuracies: tuple[float, ...] = ()
    """Accuracy by epoch, for a case that measures it.

    A fault has none: it is meant to lower accuracy.
    """

    @property
    def is_fault(self) -> bool:
        return self.verdict in FAULT_VERDICTS

    @property
    def accuracy(self) -> float | None:
        """The lowest epoch. A mean would hide an epoch that collapsed."""
        return min(self.accuracies, default=None)


@dataclass(frozen=True, slots=True)
class Covered:
    """How many combinations of conditions the passing calls of an op showed, of how many."""

    op: str
    pairs: tuple[int, int]
    triples: tuple[int, int]


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run.

    `variant` is a digest of the options and versions that decide outcomes besides case, code and
    seed.
    """

    run_id: str
    started: str
    """UTC, ISO 8601."""
    seconds: float = 0.0
    command: str = ""
    source: Source = field(default_factory=Source)
    variant: str = ""
    folder: str = ""
    num_planned: int = 0
    entries: dict[str, Entry] = field(default_factory=dict)
    """By key: cases, then faults. Planned cases that never ran are not among them."""
    coverage: tuple[Covered, ...] = ()

    @property
    def cases(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if not entry.is_fault]

    @property
    def faults(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.is_fault]

    @property
    def is_selftest(self) -> bool:
        """Whether faults were injected beside its cases, so that it stands beside such runs."""
        return bool(self.faults)

    @property
    def shares(self) -> tuple[float, float] | None:
        """The shares of pairs and of triples that its passing calls showed, over all ops; None for
        a run that counted none.
        """
        counted = [
            [sum(each) for each in zip(*found, strict=True)]
            for found in zip(*((one.pairs, one.triples) for one in self.coverage), strict=True)
        ]
        if not counted or not all(every for _, every in counted):
            return None
        (pairs, all_pairs), (triples, all_triples) = counted
        return pairs / all_pairs, triples / all_triples

    def alike(self, other: Entry) -> Entry | None:
        """The result of the same case, or of the same fault:

        `run --fault` and `selftest` write the same keys.
        """
        own = self.entries.get(other.key)
        return own if own and own.is_fault == other.is_fault else None

    @property
    def has_judged(self) -> bool:
        return any(entry.verdict not in ("skip", "error") for entry in self.entries.values())

    @property
    def totals(self) -> dict[str, int]:
        counts = Counter(entry.verdict for entry in self.cases)
        return {name: counts[name] for name in shown_verdicts(counts)}

    @property
    def num_caught(self) -> int:
        return sum(entry.verdict == CAUGHT for entry in self.faults)


@dataclass(frozen=True, slots=True)
class _Finding:
    oracle: str
    message: str


@dataclass(frozen=True, slots=True)
class _Case:
    """A case in a summary.

    What a field of it means stands at :class:`harness.core.records.CaseResult`.
    """

    id: str
    scenario: str
    verdict: Verdict
    seconds: float
    reason: str
    findings: list[_Finding]
    seed: int
    device: str
    blamed: list[str]


@dataclass(frozen=True, slots=True)
class _Fault:
    fault: str
    scenario: str
    case: str
    caught: bool
    by: list[str]
    blamed: list[str]
    seconds: float
    reason: str
    seen: bool


@dataclass(frozen=True, slots=True)
class _Epoch:
    accuracy: float


@dataclass(frozen=True, slots=True)
class _Measured:
    case: str
    fault: str | None
    epochs: list[_Epoch]


@dataclass(frozen=True, slots=True)
class _Summary:
    """What the history reads of a summary.

    Other keys are left out, so a newer summary may have more.
    """

    run_id: str
    started: str
    seconds: float
    environment: dict[str, Any]
    source: Source
    cases: list[_Case]
    faults: list[_Fault]
    accuracy: list[_Measured]
    coverage: list[Covered] = field(default_factory=list)
    """Of a run that is older than this key, none."""


_SUMMARY: TypeAdapter[_Summary] = TypeAdapter(_Summary)


def entry_of(store: RunStore) -> RunEntry:
    """The entry of a run folder, without its coverage, which takes longest to count.

    The entry of a finished run's summary has that. Raises InputError when a file is damaged.
    """
    return _parsed(summarise(store, ()), store.path)


def read_entry(folder: Path) -> RunEntry:
    """The entry of a run folder, from its summary alone. Raises InputError for a damaged one."""
    return _parsed(read_json(folder / SUMMARY), folder)


def _parsed(found: Any, folder: Path) -> RunEntry:
    summary = value_of(_SUMMARY, found, folder / SUMMARY)
    facts = dict(summary.environment)
    # The command is a fact of its own. The address of a cluster differs each time and decides
    # nothing.
    command = facts.pop("command", "")
    _ = facts.pop("cluster", None)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    accuracies = {
        (record.case, record.fault): tuple(epoch.accuracy for epoch in record.epochs)
        for record in summary.accuracy
    }
    options = facts.get("options")
    fault = str(options["fault"]) if isinstance(options, dict) and options.get("fault") else None
    cases = [
        Entry(
            # `run --fault` injects its fault in every case, and a summary names cases without it.
            key=f"{case.id}!{fault}" if fault else case.id,
            scenario=case.scenario,
            verdict=case.verdict.value,
            seconds=case.seconds,
            seed=case.seed,
            device=case.device,
            note=_line(case.reason or next((finding.message for finding in case.findings), "")),
            oracles=tuple(dict.fromkeys(finding.oracle for finding in case.findings)),
            blamed=tuple(case.blamed),
            accuracies=accuracies.get((case.id, fault), ()),
        )
        for case in summary.cases
        if case.verdict != Verdict.NOT_RUN
    ]
    faults = [
        Entry(
            key=f"{one.case}!{one.fault}",
            scenario=one.scenario,
            seconds=one.seconds,
            verdict=fault_outcome(caught=one.caught, seen=one.seen),
            note=_line(one.reason),
            oracles=tuple(one.by),
            blamed=tuple(one.blamed),
        )
        for one in summary.faults
    ]
    return RunEntry(
        run_id=summary.run_id,
        started=summary.started,
        seconds=summary.seconds,
        command=command if isinstance(command, str) else "",
        source=summary.source,
        variant=digest.hexdigest()[:16],
        folder=str(folder.resolve()),
        num_planned=len(summary.cases),
        entries={one.key: one for one in (*cases, *faults)},
        coverage=tuple(summary.coverage),
    )


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_NOTE]


MAX_LOOKED_BACK = 300
"""Runs that are searched for one with a case in common."""
_AGO = re.compile(r"(\d{1,5})\s*(m|h|d|w)", re.ASCII)
_UNITS = {"m": "minutes", "h": "hours", "d": "days", "w": "weeks"}


class PastRuns:
    """The runs below a folder, newest first by their names.

    Each is read when it is needed, and once.
    """

    def __init__(self, root: Path) -> None:
        """`root` holds run folders.

        A run without a summary, which has not ended, is none of the past.
        """
        self.root = root
        self.damaged: list[str] = []
        """Why a run that was needed could not be read, a line each."""
        self._folders = folders_with(SUMMARY, root)[::-1]
        self._read: dict[str, RunEntry | None] = {}

    def __iter__(self) -> Iterator[RunEntry]:
        return self.before("")

    @property
    def names(self) -> list[str]:
        return [folder.name for folder in self._folders]

    def before(self, run_id: str) -> Iterator[RunEntry]:
        """The runs that began before this one, newest first; all for an empty id."""
        for folder in self._folders:
            if (not run_id or folder.name < run_id) and (entry := self.named(folder.name)):
                yield entry

    def named(self, name: str) -> RunEntry | None:
        """The run in the folder of that name; None when there is none or it cannot be read."""
        if name not in self._read:
            # First, so that a damaged run is told once.
            self._read[name] = None
            if name in self.names:
                try:
                    self._read[name] = read_entry(self.root / name)
                except InputError as error:
                    self.damaged.append(str(error))
        return self._read[name]

    def earlier(
        self,
        run: RunEntry,
        *,
        limit: int = 1,
        wanted: Callable[[RunEntry], bool] = lambda run: True,
    ) -> list[RunEntry]:
        """The newest runs before `run` that judged some case, and have a case or a fault in common
        with it.
        """
        found: list[RunEntry] = []
        for place, one in enumerate(self.before(run.run_id)):
            if len(found) == limit or place == MAX_LOOKED_BACK:
                break
            if one.has_judged and any(map(one.alike, run.entries.values())) and wanted(one):
                found.append(one)
        return found


def moment(text: str, now: datetime | None = None) -> str:
    """`7d`, `12h`, `2w`, `90m`, `2026-11-01` or an ISO time -> UTC, as a run writes it.

    Raises InputError.

    A time without a zone is UTC, as all times in reports are.
    """
    match = _AGO.fullmatch(text.strip().lower())
    try:
        if match:
            when = (now or datetime.now(UTC)) - timedelta(**{_UNITS[match[2]]: int(match[1])})
        else:
            when = datetime.fromisoformat(text.strip())
            when = when if when.tzinfo else when.replace(tzinfo=UTC)
        return when.astimezone(UTC).isoformat(timespec="seconds")
    except (ValueError, OverflowError):
        raise InputError(
            f"--since {text!r}: write how long ago (7d, 12h, 90m, 2w) or a date (2026-11-01)"
        ) from None
