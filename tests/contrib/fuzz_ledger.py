"""In place of FlashInfer's `tests/test_helpers/fuzz_ledger.py`: what the file of contrib/flashinfer
calls of it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import pytest


@dataclass(frozen=True)
class Finding:
    """A known bug of some cases; with `quarantine` they are not run."""

    match: Callable[[Any], bool]
    reason: str
    quarantine: bool = False


@dataclass
class FuzzLedger:
    """The known bugs of a suite."""

    op: str
    findings: Sequence[Finding] = ()

    def xfail_if_quarantined(self, case: Any) -> None:
        """End the test before the launch if its case is quarantined."""
        for finding in self.findings:
            if finding.quarantine and finding.match(case):
                pytest.xfail(f"[{self.op}] {finding.reason}")
