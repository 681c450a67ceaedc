"""Shared by the tests of kernels: one thread, and a way to judge a kernel as a case would."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import ORACLES, SITES
from harness.core.findings import Finding
from harness.core.op_params import KERNEL_PARAMS
from harness.evidence.records import Evidence
from harness.judge.targets.kernel import KernelTarget

Judge = Callable[..., list[Finding]]
ALL_SITES = frozenset(SITES.names())


@pytest.fixture(autouse=True)
def _one_thread() -> None:
    torch.set_num_threads(1)


@pytest.fixture
def judge() -> Judge:
    """judge(op, patterns=..., sites=..., strict=..., **params) -> findings of all oracles; nothing
    looked at fails.
    """

    def judged(
        op: str,
        patterns: tuple[str, ...] = ("nan", "zeros", "max"),
        sites: frozenset[str] = ALL_SITES,
        strict: bool = False,
        **params: Any,
    ) -> list[Finding]:
        case = Case(
            id=f"test[{op}]", scenario="test", system="kernel", op=op, params=params, seed=11
        )
        target = KernelTarget(case)
        evidence = Evidence(
            case, [target.run(Poison(pattern, sites, strict)) for pattern in patterns]
        )
        crash = ORACLES.get("crash").judge(evidence).findings
        if crash:
            return crash
        findings: list[Finding] = []
        floats = ("finite",) if "floats" in KERNEL_PARAMS[op].model_validate(params).gives() else ()
        for name in (*floats, "sentinel", "reference", "non_interference"):
            judgement = ORACLES.get(name).judge(evidence)
            assert judgement.looked_at > 0, f"{name} looked at nothing"
            findings += judgement.findings
        return findings

    return judged
