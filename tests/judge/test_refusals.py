"""A refusal ends a case early: it is a skip of its own kind, and hides nothing that was seen before
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import KERNELS, SITES
from harness.core.cause_codes import Code
from harness.core.errors import Refused
from harness.core.extras import MissingPackage
from harness.core.kernels import KernelSpec
from harness.core.records import CaseResult, Verdict
from harness.evidence.observed import Observed
from harness.evidence.records import Run
from harness.judge.run_case import run_case
from harness.judge.target import Target
from harness.ops.mla_decode.kernels.tiled import mla_decode
from harness.run.sanitizer import with_report
from tests.transcripts import Approved

SMALL = {
    "seq_lens": (70, 3),
    "num_heads": 1,
    "kv_lora_rank": 32,
    "qk_rope_head_dim": 16,
    "planned": False,
}
ENGINE = {
    "requests": ((5, 6), (9, 6)),
    "layers": ("mla",),
    "num_heads": 1,
    "decode_kernel": "planted",
}


def run(**changes: Any) -> CaseResult:
    given: dict[str, Any] = {
        "id": "case",
        "scenario": "s",
        "system": "kernel",
        "op": "mla_decode",
        "seed": 7,
    }
    given |= {"oracles": ("finite", "reference"), "params": {"kernel": "planted", **SMALL}}
    poison = PoisonPlan(patterns=("nan", "zeros"), sites=tuple(SITES.names()))
    return run_case(Job(key="k", case=Case(**given | {"poison": poison} | changes)))


def in_the_engine(**changes: Any) -> CaseResult:
    return run(system="engine", op=None, params=ENGINE, **changes)


def kernel(function: Callable[..., Any], accepts: int, called: list[int]) -> KernelSpec:
    """A kernel that refuses all calls after the first so many."""

    def limited(*args: Any, **more: Any) -> Any:
        called.append(1)
        if len(called) > accepts:
            raise Refused("that is enough")
        return function(*args, **more)

    return KernelSpec(
        "mla_decode", "planted", "planted", limited, is_plugin=True, takes=("window",)
    )


def unwritten(q: Any, *args: Any, **more: Any) -> Any:
    out, lse = mla_decode(q, *args, **more)
    return torch.empty_like(out), lse


@pytest.mark.parametrize("run_it", [run, in_the_engine])
def test_what_a_kernel_refuses_is_a_skip_with_a_code_of_its_own(
    run_it: Callable[..., CaseResult],
    approved: Approved,
) -> None:
    with KERNELS.scoped(kernel(mla_decode, 0, [])):
        result = run_it()
    assert (result.verdict, result.cause) == (
        Verdict.SKIP,
        Code.KERNEL_REFUSED,
    ) and result.is_refused
    approved(result.reason)


@pytest.mark.parametrize("run_it", [run, in_the_engine])
def test_a_refusal_after_the_first_pattern_hides_no_finding_of_it(
    run_it: Callable[..., CaseResult],
) -> None:
    patterns = ("nan",)
    with KERNELS.scoped(kernel(unwritten, 10_000, num_calls := [])):
        assert (
            run_it(poison=PoisonPlan(patterns=patterns, sites=tuple(SITES.names()))).verdict
            is Verdict.FAIL
        )
    for function, verdict in ((unwritten, Verdict.FAIL), (mla_decode, Verdict.SKIP)):
        with KERNELS.scoped(kernel(function, len(num_calls), [])):
            result = run_it()
        assert result.verdict is verdict, result.reason
        assert bool(result.findings) == (verdict is Verdict.FAIL)


def test_a_refusal_of_a_further_launch_hides_no_finding_of_the_first() -> None:
    params = {"kernel": "planted", **SMALL, "launches": 3}
    poison = PoisonPlan(patterns=("nan",), sites=tuple(SITES.names()))
    with KERNELS.scoped(kernel(unwritten, 10_000, num_calls := [])):
        run(poison=poison)
    with KERNELS.scoped(kernel(unwritten, len(num_calls), [])):
        result = run(poison=poison, params=params)
    assert result.verdict is Verdict.FAIL and {finding.tensor for finding in result.findings} == {
        "out"
    }


def test_a_refusal_within_a_serving_run_hides_no_wrong_token_before_it() -> None:
    poison = PoisonPlan(patterns=("nan",), sites=tuple(SITES.names()))
    for accepts, verdict in ((0, Verdict.SKIP), (4, Verdict.FAIL)):
        with KERNELS.scoped(kernel(unwritten, accepts, [])):
            result = in_the_engine(poison=poison)
        assert result.verdict is verdict, result.reason
    with KERNELS.scoped(kernel(mla_decode, 4, [])):
        assert in_the_engine(poison=poison).is_refused


class Ending(Target):
    """Sees a NaN under the first pattern, and cannot go on under the second."""

    ends: Exception

    def run(self, poison: Poison) -> Run:
        if poison.pattern != "nan":
            raise type(self).ends
        live = torch.ones(2, dtype=torch.bool)
        return Run(
            poison.pattern,
            [Observed("out", torch.full((2, 3), float("nan")), live, torch.zeros(2, 3).double())],
        )


@pytest.mark.parametrize("ends", [Refused("the engine refuses"), MissingPackage("no package")])
def test_no_reason_to_skip_that_comes_late_hides_a_finding(
    monkeypatch: pytest.MonkeyPatch, ends: Exception
) -> None:
    monkeypatch.setattr("harness.judge.targets.kernel.KernelTarget", Ending)
    monkeypatch.setattr(Ending, "ends", ends, raising=False)
    with KERNELS.scoped(kernel(mla_decode, 0, [])):
        result = run(oracles=("finite",))
    assert result.verdict is Verdict.FAIL, result.reason


def test_errors_that_the_sanitizer_reports_are_findings_of_a_refused_case_too() -> None:
    skipped = CaseResult(key="a", id="a", scenario="a", verdict=Verdict.SKIP, reason="refused")
    found = with_report(
        skipped, "memcheck", "=== x\n=== Invalid read\n========= ERROR SUMMARY: 2 errors\n"
    )
    assert found.verdict is Verdict.FAIL and len(found.findings) == 1
    assert (
        with_report(skipped, "memcheck", "========= ERROR SUMMARY: 0 errors\n").verdict
        is Verdict.SKIP
    )
