"""Negative controls: what looks like corruption and is none fools no oracle, while the corruption
beside it is seen.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS, ORACLES, SITES
from harness.core.records import Case
from harness.core.seams import inject
from harness.evidence.observed import Observed
from harness.evidence.pairs import Pair
from harness.evidence.records import Evidence
from harness.judge.targets.engine import EngineTarget

REQUESTS = ((5, 3), (70, 3), (30, 2))
ALL = set(SITES.names())
PADDED_RANK = {"dp_rank_tokens": 100, "num_experts": 4}


def served(
    params: dict[str, Any], sites: set[str] = ALL, patterns: tuple[str, ...] = ("nan", "zeros")
) -> Evidence:
    values = {"layers": ("mla",), "requests": REQUESTS, **params}
    case = Case(id="case", scenario="s", system="engine", params=values, seed=5)
    return Evidence(
        case, [EngineTarget(case).run(Poison(pattern, frozenset(sites))) for pattern in patterns]
    )


def fires(oracle: str, evidence: Evidence) -> bool:
    judgement = ORACLES.get(oracle).judge(evidence)
    assert judgement.looked_at > 0
    return bool(judgement.findings)


def logits(evidence: Evidence) -> torch.Tensor:
    return torch.cat([observed.tensor for observed in evidence.runs[0].all(Observed)])


@pytest.mark.parametrize("oracle", ["finite", "sentinel", "reference", "non_interference"])
def test_bits_that_move_with_the_batch_alone_are_no_finding(oracle: str) -> None:
    alone, together = served({"max_num_seqs": 1}), served({"max_batched_tokens": 96})
    # The accusation of vllm-project/vllm#39146 is real in so far as the answers do differ.
    assert not torch.equal(logits(alone), logits(together))
    assert not fires(oracle, alone)
    assert not fires(oracle, together)


@pytest.mark.parametrize("oracle", ["cold_warm", "flush"])
def test_a_prefix_read_from_the_cache_may_round_otherwise(oracle: str) -> None:
    params = {"prefix_caching": True, "epochs": 2, "flush": True, "requests": ((70, 2), (90, 2))}
    evidence = served(params, patterns=("nan",))
    pairs = [pair for pair in evidence.runs[0].all(Pair) if pair.oracle == "cold_warm"]
    assert any(not torch.equal(pair.first, pair.second) for pair in pairs)
    assert not fires(oracle, evidence)


@pytest.mark.parametrize("free_list", ["fifo", "lifo"])
def test_blocks_that_change_hands_unzeroed_are_no_finding_where_the_kernel_selects(
    free_list: str,
) -> None:
    evidence = served(
        {"num_blocks": 6, "epochs": 3, "free_list": free_list, "max_num_seqs": 2},
        {"kv.new", "kv.tail"},
    )
    assert not any(
        fires(oracle, evidence)
        for oracle in ("finite", "sentinel", "reference", "non_interference")
    )


@pytest.mark.parametrize("quantize", ["fp8_per_token", "mxfp8"])
@pytest.mark.parametrize("oracle", ["finite", "reference", "non_interference", "distinct_experts"])
def test_padding_of_a_rank_is_no_finding_where_no_scale_spans_rows(
    oracle: str, quantize: str
) -> None:
    with inject(FAULTS.get("scale.dp-padding-in-amax")):
        assert not fires(oracle, served(PADDED_RANK | {"quantize": quantize}))


def test_a_scale_over_padding_is_not_blamed_on_routing() -> None:
    params = PADDED_RANK | {"quantize": "fp8_per_tensor"}
    with inject(FAULTS.get("scale.dp-padding-in-amax")):
        assert fires("finite", served(params, {"dp.pad_rows"}))
        assert not fires("finite", served(params, ALL - {"dp.pad_rows"}))
        # Routing was accused first in sgl-project/sglang#26133, and does what it should, even of
        # what NaN it is given.
        assert not fires("distinct_experts", served(params, {"router.ids", "router.weights"}))


def test_experts_that_change_with_rounding_are_no_finding() -> None:
    fine, coarse = (
        {"num_experts": 4, "quantize": quantize} for quantize in ("none", "fp8_per_token")
    )
    assert not fires("distinct_experts", served(fine))
    assert not fires("distinct_experts", served(coarse))
    assert not fires("reference", served(coarse))


def test_padding_under_a_scale_over_the_whole_batch_may_move_live_rows_by_rounding() -> None:
    params = {"graph": "full", "quantize": "fp8_per_tensor", "pad_keys": 1, "requests": REQUESTS}
    pairs = {
        rows: served(params | {"amax_rows": rows}).runs[0].all(Pair) for rows in ("live", "batch")
    }
    assert {pair.bound for pair in pairs["live"]} == {""}
    assert {pair.bound for pair in pairs["batch"]} == {"engine.logits.bf16.fp8act"}
