"""A history of many runs as large as a selftest is read from summaries alone."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from harness.cli.main import exit_code_of
from harness.store.history.entry import PastRuns, RunEntry

NUM_RUNS, NUM_CASES = 1000, 500
LIMIT_SECONDS = 120.0
"""Of a processor: many times what a command takes, so it only ends a read without an end."""

pytestmark = pytest.mark.nightly


def test_every_command_that_reads_a_large_history_is_quick(
    filled: Callable[..., PastRuns],
    make_run: Callable[..., RunEntry],
    capfd: pytest.CaptureFixture[str],
) -> None:
    verdicts = [
        {
            f"s{case // 20}[x={case}]": "fail" if (run // 4 + case) % 97 == 0 else "pass"
            for case in range(NUM_CASES)
        }
        for run in range(NUM_RUNS)
    ]
    path = filled(
        *(make_run(run, cases, commit=f"{run // 3:07x}") for run, cases in enumerate(verdicts))
    )
    for command in (
        ["history"],
        ["history", "s1", "--limit", "100000"],
        ["history", "s1[x=30]", "--limit", "100000"],
        ["history", "--since", "2026-02-04", "--branch", "main"],
        ["compare", "previous", "latest"],
    ):
        before = time.process_time()
        assert exit_code_of([*command, "--history", str(path.root)]) in (0, 1)
        assert time.process_time() - before < LIMIT_SECONDS, command
        assert capfd.readouterr().out
