"""Corrupted calls: planted kernels that clamp, fail without a name, or fall over are told from
kernels that check.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import KERNELS, SITES
from harness.core.cause_codes import Code
from harness.core.corruptions import corruptions
from harness.core.errors import KernelError, Refused
from harness.core.kernels import Checks, KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.records import CaseResult, Verdict
from harness.core.shapes import shapes_of
from harness.evidence.corrupted import ADVICE
from harness.judge.run_case import run_case
from harness.judge.targets import corrupted_calls
from harness.ops.mla_decode.kernels.tiled import mla_decode
from harness.ops.parts.call import invoke
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.override import KernelOverride
from tests.transcripts import Approved

SMALL = {"seq_lens": (70, 130, 65), "num_heads": 2, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
SCENARIOS = [one for one in load_scenarios(shipped_directory()) if "rejects" in one.oracles]


def judged(corrupt: str, name: str = "tiled", **changes: Any) -> CaseResult:
    params = KERNEL_PARAMS["mla_decode"](kernel=name, corrupt=corrupt, **{**SMALL, **changes})
    poison = PoisonPlan(patterns=("nan",), sites=tuple(SITES.names()))
    names = {"id": "case", "scenario": "s", "system": "kernel", "op": "mla_decode", "seed": 7}
    return run_case(
        Job(key="k", case=Case(**names, params=params, poison=poison, oracles=("rejects",)))
    )


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


def no_third_head(q: Any, *rest: Any, **more: Any) -> Any:
    """An error without the name of the argument, for a number of heads that it does not say it
    refuses.
    """
    if q.shape[2] == 3:
        raise ValueError("an odd batch")
    return mla_decode(q, *rest, **more)


def right_merge(
    prefix_out: Any,
    prefix_lse: Any,
    suffix_out: Any,
    suffix_lse: Any,
    *,
    num_tokens_with_context: Any,
) -> Any:
    """A slice clamps a count past the end."""
    out, lse, n = suffix_out.clone(), suffix_lse.clone(), slice(0, num_tokens_with_context)
    prefix, suffix = (
        one[:, n].float().masked_fill(one[:, n].isinf(), -torch.inf)
        for one in (prefix_lse, suffix_lse)
    )
    total = torch.logaddexp(prefix, suffix)
    sides = (
        ((prefix - total).exp().T[..., None], prefix_out[n]),
        ((suffix - total).exp().T[..., None], suffix_out[n]),
    )
    merged = sum(torch.where(weight > 0, values.float() * weight, 0.0) for weight, values in sides)
    out[n], lse[:, n] = merged.to(out.dtype), total
    return out, lse


def right_quantize(x: Any, *, num_live: Any) -> Any:
    """A slice clamps a count past the end."""
    live = x if num_live is None else x[:num_live]
    scale = (live.float().abs().amax() / 448).clamp_min(1e-12)
    return (x.float() / scale).clamp(-448, 448).to(torch.float8_e4m3fn), scale.reshape(1)


def right_map(positions: Any, block_table: Any, requests: Any, *, page_size: int) -> Any:
    """An index past the end ends in an error that names no argument."""
    table = block_table[requests[: len(positions)].long()]
    pages = table.gather(1, (positions.clamp(min=0) // page_size).long())
    return torch.where(positions >= 0, pages * page_size + positions % page_size, -1).int()


RIGHT = {"merge_attn_states": right_merge, "quantize_fp8": right_quantize, "map_indices": right_map}


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
    spec = KernelSpec("mla_decode", "planted", "planted", function, checks="values")
    with KERNELS.scoped(spec):
        result = judged(corrupt, "planted")
        assert result.verdict is Verdict.FAIL, result.reason
        assert {(finding.oracle, finding.cause) for finding in result.findings} == {
            ("rejects", cause)
        }
        # The same kernel is right where nothing is corrupted that it depends on.
        assert judged("lengths-int64", "planted").cause == Code.CORRECT


def test_a_kernel_that_promises_no_checks_may_return_garbage_for_values_alone() -> None:
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", clamped)):
        result = judged("entry-past-cache", "planted")
        assert (result.verdict, result.cause) == (Verdict.PASS, Code.SILENT_GARBAGE)
        assert result.reason.startswith("undefined by contract")
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", dense)):
        assert judged("lengths-strided", "planted").verdict is Verdict.FAIL


PLUGIN: dict[str, Any] = {"origin": "my_kernel.py", "is_plugin": True, "checks": "nothing"}
"""What the decorator makes of a kernel that promises nothing."""


@pytest.mark.parametrize(
    ("function", "corrupt", "more"),
    [
        (clamped, "entry-past-cache", {}),
        (dense, "lengths-strided", {}),
        (no_third_head, "heads-3", {"shapes": shapes_of({"num_heads": [2]})}),
    ],
)
def test_what_a_call_that_breaks_the_contract_came_to_is_a_note_for_a_plug_in_that_promises_no_checks(  # noqa: E501
    function: Callable[..., Any], corrupt: str, more: dict[str, Any]
) -> None:
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", function, **PLUGIN, **more)):
        result = judged(corrupt, "planted")
    assert result.verdict is Verdict.PASS and not result.findings
    assert result.cause in (Code.SILENT_GARBAGE, Code.UNCLEAR_ERROR)
    assert result.reason.startswith("undefined by contract") and ADVICE in result.reason


@pytest.mark.parametrize(
    ("function", "corrupt"), [(masked, "scores-below-mask"), (no_third_head, "heads-3")]
)
def test_a_legal_call_is_judged_whatever_a_plug_in_promises(
    function: Callable[..., Any], corrupt: str
) -> None:
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", function, **PLUGIN)):
        assert judged(corrupt, "planted").verdict is Verdict.FAIL


def test_a_plan_that_a_plug_in_is_not_given_hides_no_finding(approved: Approved) -> None:
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", masked, **PLUGIN)):
        result = judged("all", "planted")
        assert [finding.tensor for finding in result.findings] == ["kv_cache"], result.reason
        alone = judged("plan-of-fewer-requests", "planted")
        assert (alone.verdict, alone.cause) == (
            Verdict.SKIP,
            Code.UNSUPPORTED,
        ) and "without a plan" in alone.reason
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", mla_decode, **PLUGIN)):
        result = judged("all", "planted")
        assert result.verdict is Verdict.PASS
        approved(result.reason)


def refusing(*_: Any, **__: Any) -> Any:
    raise Refused("not today, with q, kv_cache, block_table or seq_lens")


def broken(*_: Any, **__: Any) -> Any:
    raise AttributeError(
        "module 'torch' has no attribute 'emty'; seq_lens, q, kv_cache, block_table"
    )


def test_a_kernel_that_does_not_take_the_call_uncorrupted_is_judged_by_that_and_by_no_corruption() -> (  # noqa: E501
    None
):
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", refusing, **PLUGIN)):
        result = judged("all", "planted")
        assert (result.verdict, result.cause) == (Verdict.SKIP, Code.KERNEL_REFUSED)
        assert result.reason.startswith("mla_decode/planted: not today")
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", broken, **PLUGIN)):
        result = judged("all", "planted")
        assert result.verdict is Verdict.CRASH
        assert [(finding.cause, finding.error) for finding in result.findings] == [
            (Code.RAISED, "AttributeError")
        ]


@pytest.mark.parametrize("op", ["merge_attn_states", "quantize_fp8", "map_indices"])
def test_a_right_kernel_that_checks_nothing_passes_the_corrupted_calls_of_its_op(op: str) -> None:
    (scenario,) = (one for one in SCENARIOS if one.op == op and one.device == "any")
    with KERNELS.scoped(KernelSpec(op, "right", "right", RIGHT[op], **PLUGIN)):
        (case,) = expand(scenario, override=KernelOverride("right", frozenset({op})))
        result = run_case(Job(key="k", case=case))
        assert result.verdict is Verdict.PASS, result.reason
        assert "undefined by contract" in result.reason and ADVICE in result.reason
    with KERNELS.scoped(
        KernelSpec(op, "right", "right", RIGHT[op], **PLUGIN | {"checks": "arguments"})
    ):
        assert run_case(Job(key="k", case=case)).verdict is Verdict.FAIL, (
            "it promised to check, and does not"
        )


@pytest.mark.parametrize(
    ("checks", "verdict"), [("values", Verdict.CRASH), ("arguments", Verdict.PASS)]
)
def test_a_failure_of_the_device_is_a_crash_where_an_error_is_promised(
    monkeypatch: pytest.MonkeyPatch, checks: Checks, verdict: Verdict
) -> None:
    with KERNELS.scoped(KernelSpec("mla_decode", "planted", "planted", mla_decode, checks=checks)):
        fail_on_the_device(monkeypatch, after=1)
        assert judged("length-past-table", "planted").verdict is verdict
        fail_on_the_device(monkeypatch, after=1)
        assert judged("query-strided", "planted").verdict is Verdict.CRASH


def test_a_device_that_fails_in_a_call_that_is_not_judged_hides_no_finding(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = KernelSpec("mla_decode", "planted", "planted", masked)
    num_judged = sum(one.is_judged(spec) for one in corruptions("mla_decode").values())
    fail_on_the_device(monkeypatch, after=1 + num_judged)
    with KERNELS.scoped(spec):
        result = judged("all", "planted")
    assert [finding.tensor for finding in result.findings] == [
        "kv_cache"
    ] and result.verdict is Verdict.FAIL


def fail_on_the_device(monkeypatch: pytest.MonkeyPatch, after: int) -> None:
    """From now on the device does so many launches, and fails in the next.

    The first is not corrupted.
    """
    launches = iter(range(after))

    def fails(spec: KernelSpec, *call: Any) -> Any:
        if next(launches, None) is not None:
            return invoke(spec, *call)
        raise KernelError(
            "planted failed on the device: CUDA error",
            cause=Code.DEVICE,
            kernel="mla_decode/planted",
        )

    monkeypatch.setattr(corrupted_calls, "invoke", fails)


def test_an_unknown_corruption_is_an_error_with_the_nearest_name(approved: Approved) -> None:
    result = judged("entry-past-cash")
    assert result.verdict is Verdict.ERROR
    approved(result.reason)


@pytest.mark.parametrize(
    "scenario", [one for one in SCENARIOS if one.device == "any"], ids=lambda one: one.name
)
def test_each_reference_kernel_is_right_or_refuses_with_the_name_of_the_argument(
    scenario: Any,
) -> None:
    for case in expand(scenario):
        result = run_case(Job(key="k", case=case))
        assert result.verdict is Verdict.PASS, result.reason
        assert result.looked_at["rejects"] == len(corruptions(scenario.op))


def test_the_scenarios_for_a_gpu_have_every_corruption_of_their_op() -> None:
    listed = {one.op: set(one.matrix["corrupt"]) for one in SCENARIOS if one.device == "cuda"}
    assert len(listed) == 12
    assert listed == {op: set(corruptions(op)) for op in listed}
    assert {one.op for one in SCENARIOS} == set(KERNEL_PARAMS)
