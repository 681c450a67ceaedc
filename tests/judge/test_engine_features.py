"""Prefix caching, windows, sparse layers and drafts in a serving run: right answers, whatever
memory nobody wrote.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS, ORACLES, SITES
from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.records import Case
from harness.core.seams import inject
from harness.engine.schedule.block_pool import BlockPool
from harness.evidence.observed import Observed
from harness.evidence.pairs import Pair
from harness.evidence.records import Evidence, Run
from harness.judge.targets.engine import EngineTarget

EVERY_SITE = frozenset(SITES.names())
SMALL: dict[str, Any] = {
    "requests": ((5, 4), (70, 4), (130, 3)),
    "max_batched_tokens": 64,
    "layers": ("mla",),
}


def case(**params: Any) -> Case:
    return Case(id="case", scenario="s", system="engine", params={**SMALL, **params}, seed=3)


def serve(sites: frozenset[str] = EVERY_SITE, pattern: str = "nan", **params: Any) -> Run:
    return EngineTarget(case(**params)).run(Poison(pattern, sites))


def judge(oracle: str, *runs: Run) -> list[Finding]:
    judgement = ORACLES.get(oracle).judge(Evidence(case(), list(runs)))
    assert judgement.looked_at > 0
    return judgement.findings


FEATURES = [
    {"layers": ("window", "mla"), "window": 1},
    {"layers": ("window", "mla"), "window": 64, "kv": "fp32", "graph": "full"},
    {
        "layers": ("window",),
        "window": 100,
        "speculative_tokens": 2,
        "decode_kernel": "tiled-multiply",
    },
    {
        "layers": ("window", "kda", "mla"),
        "window_kv": "fp8_e4m3",
        "decode_kernel": "tiled-multiply",
        "num_blocks": 12,
    },
    {"layers": ("sparse", "mla"), "index_topk": 5, "kv": "fp32"},
    {"layers": ("sparse", "sparse"), "index_topk": 200, "graph": "full", "capture": "lazy"},
    {
        "layers": ("sparse",),
        "speculative_tokens": 1,
        "graph": "full",
        "num_experts": 4,
        "epochs": 2,
    },
    {
        "speculative_tokens": 3,
        "graph": "full",
        "zero_fill_output": True,
        "quantize": "fp8_per_tensor",
        "epochs": 2,
    },
    {
        "prefix_caching": True,
        "epochs": 2,
        "num_experts": 4,
        "layers": ("sparse", "mla"),
        "kv": "fp8_e4m3",
    },
    {
        "prefix_caching": True,
        "epochs": 2,
        "speculative_tokens": 2,
        "graph": "full",
        "drafter": True,
    },
    {"prefix_caching": True, "num_blocks": 6, "epochs": 2, "free_list": "lifo", "cancelled": (1,)},
]


@pytest.mark.first(5)
@pytest.mark.parametrize("params", FEATURES, ids=str)
def test_a_feature_gives_the_dense_models_answers_whatever_memory_holds(
    params: dict[str, Any],
) -> None:
    poisoned, friendly = serve(**params), serve(pattern="zeros", **params)
    for oracle in ("finite", "sentinel", "reference"):
        assert judge(oracle, poisoned) == []
    assert judge("non_interference", poisoned, friendly) == []


@pytest.mark.parametrize("graph", ["none", "full"])
def test_no_layer_looks_up_a_padded_table_entry(graph: str) -> None:
    params = {
        "layers": ("window", "sparse"),
        "graph": graph,
        "capture_sizes": (4,),
        "speculative_tokens": 1,
    }
    run = EngineTarget(case(**params)).run(Poison("nan", EVERY_SITE, strict=True))
    assert judge("reference", run) == []


def test_warm_answers_and_those_after_a_flush_are_compared_with_the_first() -> None:
    run = serve(prefix_caching=True, epochs=2, flush=True)
    assert judge("cold_warm", run) == [] and judge("flush", run) == []
    assert {pair.oracle for pair in run.all(Pair)} == {"cold_warm", "flush"}
    assert [pair.name for pair in run.all(Pair) if pair.oracle == "cold_warm"] == [
        "request 1 of epoch 1",
        "request 2 of epoch 1",
    ]


def test_a_flush_that_leaves_the_hashes_behind_is_caught_by_flush(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(BlockPool, "flush", lambda self: list(self.free_blocks))
    assert judge("flush", serve(prefix_caching=True, flush=True))


def test_a_merge_with_another_unit_is_caught_by_cold_warm_although_all_memory_is_valid(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from harness.ops.context_attention.kernels import dense as torch_context

    right = torch_context.context_attention

    def in_base_2(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse = right(*args, **kwargs)
        return out, lse / torch.log(torch.tensor(2.0))

    monkeypatch.setattr(torch_context, "context_attention", in_base_2)
    # Prompts that fit into one step have context only where they share a prefix.
    run = serve(prefix_caching=True, epochs=2, max_batched_tokens=400, kv="fp32")
    assert judge("cold_warm", run) and judge("finite", run) == []


def test_a_listed_block_that_is_not_zeroed_is_seen_whether_or_not_an_answer_suffers() -> None:
    # A kernel that selects is not hurt.
    params = {"layers": ("window", "mla"), "window_kv": "fp32", "decode_kernel": "tiled"}
    assert judge("zeroed", serve(**params)) == []
    with inject(FAULTS.get("kv.runner-ignores-zero-list")):
        run = serve(**params)
    assert judge("zeroed", run) and judge("finite", run) == []


def test_rejected_drafts_are_judged_too() -> None:
    run = serve(speculative_tokens=2)
    assert [observed.name for observed in run.all(Observed)] == [
        "logits of epoch 0",
        "logits of rejected drafts of epoch 0",
    ]


@pytest.mark.parametrize(
    ("params", "reason"),
    [
        ({"layers": ("window", "mla"), "num_blocks": 7}, "a request needs 6"),
        ({"layers": ("window", "mla"), "prefix_caching": True}, "prefix_caching shares pages"),
        ({"speculative_tokens": 2, "max_batched_tokens": 2}, "verifies 3 tokens"),
    ],
)
def test_of_parameters_that_no_engine_can_serve_there_is_no_case(
    params: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ValidationError, match=reason):
        case(**params)


def test_a_kernel_without_windows_is_a_skip_with_its_reason() -> None:
    windowed = case(layers=("window", "mla"), decode_kernel="triton")
    reason = EngineTarget.why_not(windowed)
    assert reason.cause == Code.UNSUPPORTED and "`window`" in reason.sentence
