"""Kernels that return `out` alone, as FlagGems', lmdeploy's and fla's do: judged by it, where no
lse is needed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.core.cases import Case, Job, PoisonPlan
from harness.core.catalog import KERNELS, SITES
from harness.core.cause_codes import Code
from harness.core.kernels import KernelSpec
from harness.core.records import CaseResult, Verdict
from harness.core.systems import ENGINE_KERNELS
from harness.judge.run_case import run_case
from harness.ops.context_attention.kernels.dense import context_attention
from harness.ops.merge_attn_states.kernels.dense import merge_attn_states
from harness.ops.mla_decode.kernels.tiled import mla_decode
from harness.ops.mla_decode_sparse.kernels.gather import mla_decode_sparse
from tests.transcripts import Approved

SIZES = {"num_heads": 1, "kv_lora_rank": 32, "qk_rope_head_dim": 16}
CONTEXT = {"query_lens": (2, 3), "context_lens": (0, 5), "num_heads": 1}
PARAMS: dict[str, dict[str, Any]] = {
    "mla_decode": {"seq_lens": (70, 3), "planned": False, **SIZES},
    "mla_decode_sparse": SIZES,
    "context_attention": CONTEXT,
    "merge_attn_states": {"num_tokens": 4, "num_with_context": 2, "num_heads": 1},
}
RIGHT: dict[str, Callable[..., Any]] = {
    "mla_decode": mla_decode,
    "mla_decode_sparse": mla_decode_sparse,
    "context_attention": context_attention,
    "merge_attn_states": merge_attn_states,
}
ENGINE = {"requests": ((5, 4), (9, 4)), "num_heads": 1}
WITH_CONTEXT = {**ENGINE, "requests": ((150, 4), (9, 4))}


def spec(op: str, factor: float = 1.0, **more: Any) -> KernelSpec:
    """A kernel of `op` that returns its output alone, `factor` times as large as it should be."""

    def alone(*args: Any, **keywords: Any) -> Any:
        return RIGHT[op](*args, **keywords)[0] * factor

    promises = {"gives_lse": False, "is_plugin": True, "takes": ("window",)} | more
    return KernelSpec(op, "alone", "alone", alone, **promises)


def result_of(params: dict[str, Any], **more: Any) -> CaseResult:
    poison = PoisonPlan(patterns=("nan", "max"), sites=tuple(SITES.names()))
    oracles = ("finite", "reference", "non_interference")
    return run_case(
        Job(
            key="k",
            case=Case(
                id="case", scenario="s", params=params, poison=poison, oracles=oracles, **more
            ),
        )
    )


@pytest.mark.parametrize("op", RIGHT)
def test_a_kernel_without_an_lse_is_judged_by_its_output(op: str) -> None:
    for factor, verdict in ((1.0, Verdict.PASS), (1.1, Verdict.FAIL)):
        with KERNELS.scoped(spec(op, factor)):
            result = result_of({"kernel": "alone", **PARAMS[op]}, system="kernel", op=op)
        assert result.verdict is verdict, result.reason
        assert {finding.tensor.split()[0] for finding in result.findings} <= {"out"}


@pytest.mark.parametrize(
    ("op", "params"),
    [
        ("mla_decode", {}),
        ("mla_decode", {"graph": "full"}),
        ("mla_decode", {"layers": ("window",)}),
        ("mla_decode_sparse", {"layers": ("sparse",)}),
    ],
    ids=str,
)
def test_the_engine_needs_no_lse_of_a_decode(op: str, params: dict[str, Any]) -> None:
    (field,) = (name for name, its_op in ENGINE_KERNELS.items() if its_op == op)
    for factor, verdict in ((1.0, Verdict.PASS), (1.3, Verdict.FAIL)):
        with KERNELS.scoped(spec(op, factor)):
            result = result_of({**ENGINE, **params, field: "alone"}, system="engine")
        assert result.verdict is verdict, result.reason


@pytest.mark.parametrize(
    ("op", "field"),
    [("context_attention", "context_kernel"), ("merge_attn_states", "merge_kernel")],
)
def test_a_case_that_merges_context_is_skipped_with_the_reason(
    op: str, field: str, approved: Approved
) -> None:
    with KERNELS.scoped(spec(op)):
        result = result_of({**WITH_CONTEXT, field: "alone"}, system="engine")
        assert (result.verdict, result.cause) == (Verdict.SKIP, Code.UNSUPPORTED)
        approved(result.reason)
        assert result_of({**ENGINE, field: "alone"}, system="engine").verdict is Verdict.PASS, (
            "this case has no context"
        )


@pytest.mark.parametrize("where", ["kernel", "engine"])
def test_a_kernel_that_does_not_say_so_is_told_what_to_declare(
    where: str, approved: Approved
) -> None:
    with KERNELS.scoped(spec("mla_decode", gives_lse=True)):
        if where == "kernel":
            result = result_of(
                {"kernel": "alone", **PARAMS["mla_decode"]}, system="kernel", op="mla_decode"
            )
        else:
            result = result_of({**ENGINE, "decode_kernel": "alone"}, system="engine")
    assert result.verdict is Verdict.CRASH and result.findings[0].cause == Code.BAD_OUTPUT
    approved(result.reason)


def test_an_output_of_the_wrong_shape_is_found_without_an_lse_too(approved: Approved) -> None:
    def wrong(q: Any, *args: Any, **keywords: Any) -> Any:
        return mla_decode(q, *args, **keywords)[0][:1]

    with KERNELS.scoped(KernelSpec("mla_decode", "alone", "alone", wrong, gives_lse=False)):
        result = result_of(
            {"kernel": "alone", **PARAMS["mla_decode"]}, system="kernel", op="mla_decode"
        )
    assert result.findings[0].cause == Code.BAD_OUTPUT
    approved(result.reason)
