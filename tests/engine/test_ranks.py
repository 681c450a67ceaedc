"""Context, experts and tokens shared out among ranks that are played in one process: the answers
stay the same.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch
from pydantic import ValidationError
from torch_poison.patterns import Poison

from harness.core.cases import Case
from harness.core.catalog import SITES
from harness.core.engine_params import EngineParams
from harness.core.errors import IllegalAddress
from harness.engine import memory
from harness.engine.attention import rank_without_kv, split_among_ranks
from harness.engine.experts import apply_experts, ids_of_rank, mask_padding
from harness.engine.kernels import apply_scales, pad_to_longest_rank
from harness.evidence.observed import reference as judge
from harness.evidence.records import Evidence
from harness.judge.targets.engine import EngineTarget
from harness.ops.quantize_blocks.kernels.dense import quantize_blocks
from tests.transcripts import Approved

NAN = Poison("nan", frozenset(SITES.names()))


def served(**params: Any) -> Evidence:
    torch.set_num_threads(1)
    params = {"layers": ("mla",), "requests": ((5, 2), (70, 2)), "max_batched_tokens": 40, **params}
    case = Case(id="case", scenario="s", system="engine", params=params, seed=3)
    assert not EngineTarget.why_not(case)
    return Evidence(case, [EngineTarget(case).run(NAN)])


@pytest.mark.parametrize(
    "params",
    [
        {"context_ranks": 3, "context_chunk": 32},
        {"context_ranks": 8, "context_chunk": 33, "context_kernel": "torch-ragged"},
        {"num_experts": 4, "expert_ranks": 4},
        {
            "num_experts": 6,
            "expert_ranks": 3,
            "route_kernel": "torch-live",
            "graph": "full",
            "capture_sizes": (4,),
        },
        {"dp_rank_tokens": 60, "quantize": "fp8_per_tensor"},
        {"dp_rank_tokens": 60, "quantize": "mxfp8", "graph": "full", "capture_sizes": (4,)},
    ],
)
def test_sharing_out_is_right_whatever_stands_in_unwritten_memory(params: dict[str, Any]) -> None:
    judgement = judge(served(**params))
    assert judgement.findings == []
    assert judgement.looked_at > 0


def test_ranks_hold_each_position_once() -> None:
    chunk = [range(10, 25), range(3, 3), range(7, 8)]
    parts = split_among_ranks(chunk, 4)
    for request, span in enumerate(chunk):
        held = [position for part in parts for position in part[request]]
        assert sorted(held) == list(span)
        assert all(
            position % 4 == rank for rank, part in enumerate(parts) for position in part[request]
        )


def test_a_rank_without_keys_is_an_empty_side() -> None:
    out, lse = rank_without_kv(torch.ones(3, 2, 4), torch.ones(2, 3))
    assert not out.any()
    assert bool((lse == -torch.inf).all())


def test_experts_that_do_not_divide_evenly_are_refused(approved: Approved) -> None:
    with approved.raises(ValidationError):
        EngineParams(num_experts=4, expert_ranks=3)


def test_every_id_is_local_to_one_rank_and_a_wrong_one_stays_wrong() -> None:
    ids = torch.tensor([[0, 3], [2, 1], [-1, -1], [4, 9]], dtype=torch.int32)
    first, last = ids_of_rank(ids, 0, 2), ids_of_rank(ids, 2, None)
    assert first.tolist() == [[0, -1], [-1, 1], [-1, -1], [-1, -1]]
    assert last.tolist() == [[-1, 1], [0, -1], [-1, -1], [2, 7]]


def test_padding_is_masked_and_live_rows_are_not() -> None:
    ids = torch.tensor([[0, 3], [7_000_000, -3]], dtype=torch.int32)
    assert mask_padding(ids, torch.tensor([1])).tolist() == [[0, 3], [-1, -1]]


def test_an_id_of_minus_one_adds_nothing_and_any_other_negative_one_is_illegal() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(1, 4, generator=generator)
    weights = [torch.randn(3, *shape, generator=generator) for shape in ((8, 4), (8, 4), (4, 8))]
    weights[0][0] = float("nan")
    share = torch.tensor([[1.0, 1.0]])
    one = apply_experts(x, torch.tensor([[1, -1]]), share, *weights)
    assert bool(one.isfinite().all())
    assert torch.equal(one, apply_experts(x, torch.tensor([[-1, 1]]), share, *weights))
    with pytest.raises(IllegalAddress, match="expert ids"):
        apply_experts(x, torch.tensor([[1, -2]]), share, *weights)


def test_rows_of_padding_of_a_rank_are_memory_that_nobody_wrote() -> None:
    padded = pad_to_longest_rank(torch.ones(2, 4), 3, NAN)
    assert padded.shape == (3, 4)
    assert bool((padded[:2] == 1).all())
    assert bool(padded[2].isnan().all())


def test_a_scale_that_was_loaded_stays_and_a_missing_one_gets_the_default() -> None:
    assert memory.settled(0.5) == 0.5
    assert 0 < memory.settled(memory.NOT_LOADED) < 1


def test_block_scales_are_applied_exactly_and_their_tiles_are_read_whole() -> None:
    x = torch.tensor([[1.0, -2.0, 4.0, 0.5] * 8, [3.0] * 32])
    values, scales = quantize_blocks(x, torch.tensor([0, 2]), block_format="mxfp8")
    assert torch.equal(apply_scales(values, scales, "mxfp8"), x)
    scales[100] = 255
    assert bool(apply_scales(values, scales, "mxfp8").isnan().all())
