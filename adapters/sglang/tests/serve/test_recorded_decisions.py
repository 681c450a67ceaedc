"""The decisions that SGLang returns beside an answer, as `benchmarks/sglang_decisions.py` writes
them down.
"""

from __future__ import annotations

import base64
from typing import Any

import torch

from benchmarks.sglang_decisions import of_answer
from canaries.recorded import Decider, unpacked

NUM_LAYERS = 3


def returned(key: str, layers: list[list[list[int]]]) -> dict[str, Any]:
    """`meta_info` with ids [layers][T][k] as SGLang returns them: [T, layers, k]."""
    ids = torch.tensor(layers, dtype=torch.int32).transpose(0, 1).contiguous()
    text = base64.b64encode(ids.numpy().tobytes()).decode()
    return {key: text, "prompt_tokens": len(ids) - 1, "completion_tokens": 2}


def test_each_layer_that_decides_has_its_rows_and_a_dense_one_has_none() -> None:
    nothing = [[0, 0]] * 4
    experts = [[3, 1], [0, 2], [0, 0], [1, 0]]
    found = unpacked(of_answer(returned("routed_experts", [nothing, experts, nothing]), NUM_LAYERS))
    # Sorted, and what no router wrote is unknown: one expert cannot be chosen twice.
    assert {decider: ids.tolist() for decider, ids in found.items()} == {
        Decider(1, "experts"): [[1, 3], [0, 2], [-2, -2], [0, 1]]
    }


def test_an_indexer_that_did_not_run_for_few_tokens_has_chosen_them_all() -> None:
    nothing = [[0, 0, 0]] * 5
    ran = [[0, -1, -1], [1, 0, -1], [2, 0, 1], [3, 1, 0], [4, 2, 0]]
    late = [[0, 0, 0], [0, 0, 0], [0, 0, 0], [3, 1, 0], [0, 0, 0]]
    found = unpacked(of_answer(returned("indexer_topk", [ran, late, nothing]), NUM_LAYERS))
    assert {decider.layer: ids.tolist() for decider, ids in found.items()} == {
        0: [[-1, -1, 0], [-1, 0, 1], [0, 1, 2], [0, 1, 3], [0, 2, 4]],
        # The last row is past the choice of three, so that a missing one is unknown.
        1: [[-1, -1, 0], [-1, 0, 1], [0, 1, 2], [0, 1, 3], [-2, -2, -2]],
    }


def test_an_answer_without_them_has_no_decisions() -> None:
    assert of_answer({"finish_reason": None}, NUM_LAYERS) == {}
