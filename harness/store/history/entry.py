"""One run of the past: its facts and results, read from the summary in its folder."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from harness.core.errors import InputError
from harness.core.records import Verdict
from harness.store.run_folder import RunStore
from harness.store.source import Source
from harness.store.summary import SUMMARY, shown_verdicts, summarise

MAX_NOTE = 400
"""Characters kept of a reason; the run folder has all of it."""
CAUGHT, MISSED = "caught", "missed"
"""The verdicts of a fault."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One finished case of a run, or one fault that a selftest injected in a case."""

    key: str
    """The case id, or `id!fault` where a fault was injected."""
    scenario: str
    verdict: str
    """Of a case as everywhere; of a fault `caught` or `missed`."""
    seconds: float = 0.0
    seed: int = 0
    device: str = "cpu"
    note: str = ""
    """Why it did not pass, in one line."""
    oracles: tuple[str, ...] = ()
    blamed: tuple[str, ...] = ()
    accuracies: tuple[float, ...] = ()
    """Accuracy by epoch, for a case that measures it. A fault has none: it is meant to lower accuracy."""

    @property
    def is_fault(self) -> bool:
        return self.verdict in (CAUGHT, MISSED)

    @property
    def accuracy(self) -> float | None:
        """The lowest epoch. A mean would hide an epoch that collapsed."""
        return min(self.accuracies, default=None)


@dataclass(frozen=True, slots=True)
class RunEntry:
    """One run. `variant` is a digest of the options and versions that decide outcomes besides case, code and seed."""

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

    @property
    def cases(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if not entry.is_fault]

    @property
    def faults(self) -> list[Entry]:
        return [entry for entry in self.entries.values() if entry.is_fault]

    def alike(self, other: Entry) -> Entry | None:
        """The result of the same case, or of the same fault: `run --fault` and `selftest` write the same keys."""
        own = self.entries.get(other.key)
        return own if own and own.is_fault == other.is_fault else None

    @property
    def has_judged(self) -> bool:
        return any(entry.verdict not in ("skip", "error") for entry in self.entries.values())

    @property
    def totals(self) -> dict[str, int]:
        """Cases by verdict."""
        counts = Counter(entry.verdict for entry in self.cases)
        return {name: counts[name] for name in shown_verdicts(counts)}

    @property
    def num_caught(self) -> int:
        return sum(entry.verdict == CAUGHT for entry in self.faults)


def entry_of(store: RunStore) -> RunEntry:
    """The entry of a run folder. Raises InputError when one of its files is damaged."""
    return _parsed(summarise(store), store.path)


def read_entry(folder: Path) -> RunEntry:
    """The entry of a run folder, from its summary alone where that is whole.

    Summaries of older versions lack facts; these runs are read from their results. Raises InputError for a damaged one.
    """
    file = folder / SUMMARY
    try:
        summary = json.loads(file.read_text(encoding="utf-8"))
        if "source" in summary:
            return _parsed(summary, folder)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise InputError(f"{file}: cannot be read: {type(error).__name__}: {error}") from None
    return entry_of(RunStore.open(folder))


def _parsed(summary: dict[str, Any], folder: Path) -> RunEntry:
    facts = dict(summary["environment"])
    # The command is a fact of its own. The address of a cluster differs each time and decides nothing.
    command, _ = facts.pop("command"), facts.pop("cluster", None)
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, default=str).encode())
    accuracies = {
        (record["case"], record["fault"]): tuple(epoch["accuracy"] for epoch in record["epochs"])
        for record in summary["accuracy"]
    }
    fault = facts["options"].get("fault")
    cases = [
        Entry(
            key=f"{case['id']}!{fault}" if fault else case["id"],
            **{name: case[name] for name in ("scenario", "verdict", "seconds", "seed", "device")},
            note=_line(case["reason"] or next((finding["message"] for finding in case["findings"]), "")),
            oracles=tuple(dict.fromkeys(finding["oracle"] for finding in case["findings"])),
            blamed=tuple(case["blamed"]),
            accuracies=accuracies.get((case["id"], fault), ()),
        )
        for case in summary["cases"]
        if case["verdict"] != Verdict.NOT_RUN
    ]
    faults = [
        Entry(
            key=f"{one['case']}!{one['fault']}",
            **{name: one[name] for name in ("scenario", "seconds")},
            verdict=CAUGHT if one["caught"] else MISSED,
            note=_line(one["reason"]),
            oracles=tuple(one["by"]),
            blamed=tuple(one["blamed"]),
        )
        for one in summary["faults"]
    ]
    return RunEntry(
        **{name: summary[name] for name in ("run_id", "started", "seconds")},
        command=command,
        source=Source(**summary["source"]),
        variant=digest.hexdigest()[:16],
        folder=str(folder.resolve()),
        num_planned=len(summary["cases"]),
        entries={one.key: one for one in (*cases, *faults)},
    )


def _line(text: str) -> str:
    return " ".join(text.split())[:MAX_NOTE]
