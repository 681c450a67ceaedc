"""Runs of a history, written as short as tests need them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from harness.store.history.database import opened
from harness.store.history.entry import CaseEntry, FaultEntry, RunEntry, write_run
from harness.store.source import Source

MakeRun = Callable[..., RunEntry]


@pytest.fixture
def make_run() -> MakeRun:
    """`make_run(3, {"a[x=1]": "fail"})`: the third run, of commit "c", with the cases given."""

    def make(
        number: int,
        verdicts: dict[str, str | CaseEntry],
        *,
        commit: str = "c0ffee1",
        branch: str = "main",
        changes: str = "",
        variant: str = "v",
        faults: tuple[FaultEntry, ...] = (),
    ) -> RunEntry:
        cases = tuple(
            found if isinstance(found, CaseEntry) else CaseEntry(key, key.partition("[")[0], found, 0.25, seed=7)
            for key, found in verdicts.items()
        )
        return RunEntry(
            run_id=f"run-{number:04d}", started=f"2026-01-{1 + number // 24:02d}T{number % 24:02d}:00:00+00:00",
            seconds=1.5, command="mla-harness run", source=Source(commit=commit, branch=branch, changes=changes),
            variant=variant, folder="", num_planned=len(cases), cases=cases, faults=faults,
        )  # fmt: skip

    return make


@pytest.fixture
def history(tmp_path: Path) -> Path:
    """Where a history would be; nothing is there yet."""
    return tmp_path / "history.sqlite"


@pytest.fixture
def filled(history: Path) -> Callable[..., Path]:
    """Write runs to the history."""

    def fill(*runs: RunEntry) -> Path:
        with opened(history, create=True) as connection:
            for run in runs:
                write_run(connection, run)
        return history

    return fill
