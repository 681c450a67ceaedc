"""The history on the terminal."""

from __future__ import annotations

import io

from harness.core.fault_outcomes import WRONG_BLAME
from harness.report.console import console_for
from harness.report.terminal_history import print_scenario
from harness.store.history.entry import Entry, RunEntry
from harness.store.history.trends import trends_over


def test_a_fault_that_was_never_blamed_as_declared_is_no_case() -> None:
    entries = [Entry("a[n=1]", "a", "pass"), Entry("a[n=1]!kv.stale", "a", WRONG_BLAME)]
    runs = [
        RunEntry(
            run_id=f"run-{number}",
            started=f"2026-11-0{number}T00:00:00+00:00",
            entries={one.key: one for one in entries},
        )
        for number in (1, 2)
    ]
    screen = io.StringIO()
    print_scenario(console_for(screen), "a", trends_over(runs, "a"))
    assert "1 case passed or skipped" in screen.getvalue()
    assert "caught in 0 of 2 runs" in screen.getvalue()
