"""Context kernels that leave anything as the lse of rows without keys: right where they declare
none, found where they promise one.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import KERNELS, SITES
from harness.core.kernels import KernelSpec
from harness.core.records import CaseResult, Verdict
from harness.judge.run_case import run_case
from harness.ops.context_attention.kernels.dense import context_attention

SERVED = {
    "layers": ("mla",),
    "kv": "fp32",
    "requests": ((5, 3), (70, 2), (17, 3), (90, 2)),
    "max_batched_tokens": 48,
}
CHUNKS: dict[str, dict[str, int]] = {
    "one": {"context_chunk": 512},
    "several": {"context_chunk": 24},
    "ranks": {"context_chunk": 512, "context_ranks": 8},
    "several-on-ranks": {"context_chunk": 24, "context_ranks": 3},
}


def spec(lse_of_empty_rows: float, **promises: Any) -> KernelSpec:
    """A right kernel that leaves `lse_of_empty_rows` where there is no key."""

    def unmarked(*args: Any, **keywords: Any) -> Any:
        out, lse = context_attention(*args, **keywords)
        return out, torch.where(lse == -torch.inf, lse_of_empty_rows, lse)

    return KernelSpec("context_attention", "unmarked", "", unmarked, is_plugin=True, **promises)


def served(**params: Any) -> CaseResult:
    poison = PoisonPlan(patterns=("nan", "max"), sites=tuple(SITES.names()))
    oracles = ("finite", "sentinel", "reference", "non_interference", "tokens", "conserved")
    more: dict[str, Any] = {"params": SERVED | params, "poison": poison, "oracles": oracles}
    return run_case(Job(key="k", case=Case(id="case", scenario="s", system="engine", **more)))


@pytest.mark.parametrize("lse", [float("nan"), 0.0, 1e30])
@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_an_lse_that_is_declared_undefined_is_not_read(chunks: dict[str, int], lse: float) -> None:
    with KERNELS.scoped(spec(lse)):
        result = served(context_kernel="unmarked", **chunks)
    assert result.verdict is Verdict.PASS, result.reason


@pytest.mark.parametrize("chunks", CHUNKS.values(), ids=CHUNKS)
def test_the_kernel_that_writes_no_lse_of_such_rows_is_right(chunks: dict[str, int]) -> None:
    result = served(context_kernel="torch-unmarked", **chunks)
    assert result.verdict is Verdict.PASS, result.reason


def test_a_promised_lse_that_is_not_there_is_found() -> None:
    with KERNELS.scoped(spec(0.0, empty_lse="-inf")):
        result = served(context_kernel="unmarked", **CHUNKS["several"])
    assert result.verdict is Verdict.FAIL
    assert "reference" in {finding.oracle for finding in result.findings}
