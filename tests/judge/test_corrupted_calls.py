"""Corrupted calls: planted kernels that clamp, fail without a name, or fall over are told from kernels that check."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import KERNELS, SITES
from harness.core.cause_codes import Code
from harness.core.corruptions import corruptions
from harness.core.errors import KernelError
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.records import CaseResult, Verdict
from harness.judge.run_case import run_case
from harness.judge.targets import further_launches
from harness.kernels.torch.decode import mla_decode
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory

SMALL = {"seq_lens": (70, 130, 65), "num_heads": 2, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
SCENARIOS = [one for one in load_scenarios(shipped_directory()) if "rejects" in one.oracles]


def judged(corrupt: str, name: str = "tiled", **changes: Any) -> CaseResult:
    params = KERNEL_PARAMS["mla_decode"](kernel=name, corrupt=corrupt, **{**SMALL, **changes})
    poison = PoisonPlan(patterns=("nan",), sites=tuple(SITES.names()))
    names = {"id": "case", "scenario": "s", "system": "kernel", "op": "mla_decode", "seed": 7}
    return run_case(Job(key="k", case=Case(**names, params=params, poison=poison, oracles=("rejects",))))


def clamped(q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, **more: Any) -> Any:
    """Garbage: an entry that no page has is replaced by one that there is."""
    return mla_decode(q, kv_cache, block_table.clamp(0, len(kv_cache) - 1), seq_lens, **more)


def unnamed(q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, **more: Any) -> Any:
    """An error of torch's, which knows no argument of the kernel."""
    kv_cache[block_table.long()]
    return mla_decode(q, kv_cache, block_table, seq_lens, **more)


def masked(q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, **more: Any) -> Any:
    """Rows with every score below the mask are 0 (flashinfer-ai/flashinfer#4401)."""
    out, lse = mla_decode(q, kv_cache, block_table, seq_lens, **more)
    return torch.where((lse < -5e4).transpose(1, 2)[..., None], 0.0, out).to(out.dtype), lse


def dense(q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, **more: Any) -> Any:
    """The lengths are read at their address, whatever their stride."""
    read = seq_lens.as_strided(seq_lens.shape, (1,)).clamp(max=block_table.shape[1] * 64)
    return mla_decode(q, kv_cache, block_table, read, **more)


def spoiling(q: Any, kv_cache: Any, block_table: Any, seq_lens: Any, **more: Any) -> Any:
    """Right, but an argument is mended in place."""
    seq_lens.clamp_(min=0)
    return mla_decode(q, kv_cache, block_table, seq_lens, **more)


@pytest.mark.parametrize(
    ("function", "corrupt", "cause"),
    [
        (clamped, "entry-past-cache", Code.SILENT_GARBAGE),
        (clamped, "entry-negative", Code.SILENT_GARBAGE),
        (unnamed, "entry-past-cache", Code.UNCLEAR_ERROR),
        (masked, "scores-below-mask", Code.SILENT_GARBAGE),
        (dense, "lengths-strided", Code.SILENT_GARBAGE),
        (spoiling, "length-negative", Code.SILENT_GARBAGE),
    ],
)
def test_a_planted_kernel_is_found(function: Callable[..., Any], corrupt: str, cause: Code) -> None:
    spec = KernelSpec("mla_decode", "planted", "planted", function, checks_values=True)
    with KERNELS.scoped(spec):
        result = judged(corrupt, "planted")
        assert result.verdict is Verdict.FAIL, result.reason
        assert {(finding.oracle, finding.cause) for finding in result.findings} == {("rejects", cause)}
        # The same kernel is right where nothing is corrupted that it depends on.
        assert judged("lengths-int64", "planted").cause == Code.CORRECT


def test_a_kernel_that_promises_no_checks_may_return_garbage_for_values_alone() -> None:
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", clamped)):
        result = judged("entry-past-cache", "planted")
        assert (result.verdict, result.cause) == (Verdict.PASS, Code.SILENT_GARBAGE)
        assert result.reason.startswith("undefined by contract")
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", dense)):
        assert judged("lengths-strided", "planted").verdict is Verdict.FAIL


@pytest.mark.parametrize(("checks", "verdict"), [(True, Verdict.CRASH), (False, Verdict.PASS)])
def test_a_failure_of_the_device_is_a_crash_where_an_error_is_promised(
    monkeypatch: pytest.MonkeyPatch, checks: bool, verdict: Verdict
) -> None:
    def fails(*_: Any) -> Any:
        raise KernelError("planted failed on the device: CUDA error", cause=Code.DEVICE, kernel="mla_decode/planted")

    monkeypatch.setattr(further_launches, "invoke", fails)
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", mla_decode, checks_values=checks)):
        assert judged("length-past-table", "planted").verdict is verdict
        assert judged("query-strided", "planted").verdict is Verdict.CRASH


def test_an_unknown_corruption_is_an_error_with_the_nearest_name() -> None:
    result = judged("entry-past-cash")
    assert result.verdict is Verdict.ERROR and "did you mean 'entry-past-cache'" in result.reason


@pytest.mark.parametrize("scenario", [one for one in SCENARIOS if one.device == "any"], ids=lambda one: one.name)
def test_each_reference_kernel_is_right_or_refuses_with_the_name_of_the_argument(scenario: Any) -> None:
    for case in expand(scenario):
        result = run_case(Job(key="k", case=case))
        assert result.verdict is Verdict.PASS, result.reason
        assert result.looked_at["rejects"] == len(corruptions(scenario.op))


def test_the_scenarios_for_a_gpu_have_every_corruption_of_their_op() -> None:
    listed = {one.op: set(one.matrix["corrupt"]) for one in SCENARIOS if one.device == "cuda"}
    assert len(listed) == 12
    assert listed == {op: set(corruptions(op)) for op in listed}
    assert {one.op for one in SCENARIOS} == set(KERNEL_PARAMS)
