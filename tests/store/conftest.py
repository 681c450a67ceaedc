"""Runs of the past, written as short as tests need them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.core.fault_outcomes import CAUGHT, MISSED
from harness.store.history.entry import Entry, PastRuns, RunEntry
from harness.store.source import Source

MakeRun = Callable[..., RunEntry]


@pytest.fixture
def make_run() -> MakeRun:
    """`make_run(3, {"a[x=1]": "fail"})`: the third run, of commit "c0ffee1", with the cases
    given.
    """

    def make(
        number: int,
        verdicts: dict[str, str | Entry],
        *,
        commit: str = "c0ffee1",
        branch: str = "main",
        changes: str = "",
        variant: str = "v",
        faults: tuple[Entry, ...] = (),
    ) -> RunEntry:
        cases = [
            found
            if isinstance(found, Entry)
            else Entry(key, key.partition("[")[0], found, 0.25, seed=7)
            for key, found in verdicts.items()
        ]
        return RunEntry(
            run_id=f"run-{number:04d}",
            started=f"2026-01-{1 + number // 24:02d}T{number % 24:02d}:00:00+00:00",
            seconds=1.5,
            command="mla-harness run",
            source=Source(commit=commit, branch=branch, changes=changes),
            variant=variant,
            num_planned=len(cases),
            entries={one.key: one for one in (*cases, *faults)},
        )

    return make


def write_summary(root: Path, run: RunEntry) -> None:
    """Write the summary that a run with these results has."""
    same = ("scenario", "verdict", "seconds", "seed", "device")
    cases = [
        {
            **{name: getattr(one, name) for name in same},
            "id": one.key,
            "reason": one.note,
            "findings": [{"oracle": oracle, "message": one.note} for oracle in one.oracles],
            "blamed": one.blamed,
        }
        for one in run.cases
    ]
    faults = [
        {
            "case": one.key.partition("!")[0],
            "fault": one.key.partition("!")[2],
            "seen": one.verdict != MISSED,
            "caught": one.verdict == CAUGHT,
            "reason": one.note,
            "by": one.oracles,
            **{name: getattr(one, name) for name in ("scenario", "seconds", "blamed")},
        }
        for one in run.faults
    ]
    accuracy = [
        {
            "case": one.key,
            "fault": None,
            "epochs": [{"accuracy": value} for value in one.accuracies],
        }
        for one in run.cases
        if one.accuracies
    ]
    summary = {
        **{name: getattr(run, name) for name in ("run_id", "started", "seconds")},
        "environment": {"command": run.command, "options": {}, "torch": run.variant},
        "source": run.source.model_dump(),
        "cases": cases,
        "faults": faults,
        "accuracy": accuracy,
    }
    (root / run.run_id).mkdir(parents=True)
    (root / run.run_id / "summary.json").write_text(json.dumps(summary))


@pytest.fixture
def filled(tmp_path: Path) -> Callable[..., PastRuns]:
    """Write runs to a folder of runs."""

    def fill(*runs: RunEntry) -> PastRuns:
        for run in runs:
            write_summary(tmp_path, run)
        return PastRuns(tmp_path)

    return fill
