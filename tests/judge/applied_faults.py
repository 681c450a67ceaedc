"""What an oracle finds in a run of the engine, with a fault and without."""

from __future__ import annotations

from typing import Any

from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS, ORACLES
from harness.core.findings import Finding
from harness.core.records import Case
from harness.core.seams import inject
from harness.evidence.records import Evidence
from harness.judge.targets.engine import EngineTarget


def findings(
    oracle: str, params: dict[str, Any], sites: set[str], pattern: str = "nan"
) -> list[Finding]:
    """What `oracle` finds in one run of the engine under `pattern`; it must have looked at
    something.
    """
    case = Case(id="case", scenario="s", system="engine", params=params, seed=7)
    assert not EngineTarget.why_not(case)
    run = EngineTarget(case).run(Poison(pattern, frozenset(sites)))
    judgement = ORACLES.get(oracle).judge(Evidence(case, [run]))
    assert judgement.looked_at
    return judgement.findings


def check_caught(
    name: str, oracle: str, params: dict[str, Any], sites: set[str], site: str | None
) -> None:
    """The fault `name` is seen by `oracle` while it is applied, and neither before nor after."""
    assert findings(oracle, params, sites) == []
    with inject(FAULTS.get(name)):
        found = findings(oracle, params, sites)
    assert found and (site is None or site in {finding.site for finding in found})
    assert findings(oracle, params, sites) == []


def check_silent(name: str, oracle: str, params: dict[str, Any], sites: set[str]) -> None:
    """The fault `name` cannot be seen by `oracle` here, although it is applied."""
    with inject(FAULTS.get(name)):
        assert findings(oracle, params, sites) == []
