"""Entries as tests of the past need them."""

from __future__ import annotations

from harness.core.fault_outcomes import CAUGHT, MISSED
from harness.store.history.entry import Entry


def fault(name: str, case: str, caught: bool, **more: object) -> Entry:
    """The outcome of a fault that was injected in a case."""
    scenario = case.partition("[")[0]
    return Entry(f"{case}!{name}", scenario, CAUGHT if caught else MISSED, **more)  # type: ignore[arg-type]
