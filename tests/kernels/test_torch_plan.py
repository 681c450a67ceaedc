"""Plans and workspaces of decodes: units, room, surplus items, and counters that start where they
should not.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.allocations import AllocationPoison
from torch_poison.patterns import Poison

from harness.core.catalog import FAULTS
from harness.core.errors import IllegalAddress
from harness.core.seams import inject
from harness.ops.mla_decode import inputs as mla_decode_inputs
from harness.ops.mla_decode.inputs import MlaDecodeInputs
from harness.ops.mla_decode.kernels import tiled as torch_decode
from harness.ops.mla_decode.kernels.tiled import count_arrivals, mla_decode, mla_decode_counted
from harness.ops.mla_decode.params import MlaDecodeParams
from harness.ops.mla_decode_plan.kernels.tiled import mla_decode_plan, pages_per_chunk
from harness.ops.parts.split_plan import MAX_SPLITS, SplitPlan
from tests.transcripts import Approved

ITEMSIZE = {"fp32": 4, "bf16": 2, "fp8_e4m3": 1}


def made(kv: str = "fp32", seq_lens: tuple[int, ...] = (70, 0, 640)) -> MlaDecodeInputs:
    params = {
        "kv": kv,
        "seq_lens": seq_lens,
        "num_heads": 2,
        "kv_lora_rank": 16,
        "qk_rope_head_dim": 8,
    }
    return mla_decode_inputs.draw(MlaDecodeParams.model_validate(params), seed=1)


def decoded(given: MlaDecodeInputs, metadata: SplitPlan | None = None) -> torch.Tensor:
    out, _ = mla_decode(
        given.q,
        given.kv_cache,
        given.block_table,
        given.seq_lens,
        scale=given.scale,
        kv_scale=given.kv_scale,
        metadata=metadata,
    )
    return out


def counted(
    given: MlaDecodeInputs,
    workspace: torch.Tensor | None = None,
    metadata: SplitPlan | None = None,
) -> torch.Tensor:
    words = torch.zeros(len(given.seq_lens), dtype=torch.int32) if workspace is None else workspace
    out, _ = mla_decode_counted(
        given.q,
        given.kv_cache,
        given.block_table,
        given.seq_lens,
        scale=given.scale,
        kv_scale=given.kv_scale,
        metadata=metadata,
        workspace=words,
    )
    return out


def close(a: torch.Tensor, b: torch.Tensor) -> bool:
    return float((a[[0, 2]].float() - b[[0, 2]].float()).abs().max()) < 0.02


@pytest.mark.parametrize("kv", ITEMSIZE)
def test_a_plan_in_chunks_of_the_caches_type_reads_every_page(kv: str) -> None:
    given = made(kv)
    plan = mla_decode_plan(given.seq_lens, num_heads=2, kv_itemsize=ITEMSIZE[kv])
    assert plan.in_chunks and close(decoded(given, plan), decoded(given))
    assert int(plan.work[:, 2].max()) == -(-10 // pages_per_chunk(ITEMSIZE[kv]))


@pytest.mark.parametrize("kv", ITEMSIZE)
def test_a_plan_for_bfloat16_leaves_pages_of_narrower_types_out(kv: str) -> None:
    given = made(kv)
    plan = mla_decode_plan(given.seq_lens, num_heads=2, kv_itemsize=2)
    # Chunks that are too small in number leave pages out, chunks that are too many are clipped.
    assert close(decoded(given, plan), decoded(given)) == (kv != "fp8_e4m3")


def test_scratch_has_room_for_the_pieces_of_any_plan() -> None:
    given = made()
    short = mla_decode_plan(torch.ones(3, dtype=torch.int32), num_heads=2)
    assert short.room == MAX_SPLITS
    fresh = mla_decode_plan(given.seq_lens, num_heads=2)
    for captured, new in ((short.work, fresh.work), (short.num_splits, fresh.num_splits)):
        captured.copy_(new)
    assert torch.equal(decoded(given, short)[[0, 2]], decoded(given, fresh)[[0, 2]])


def test_scratch_with_the_room_of_a_shorter_plan_is_an_illegal_address(approved: Approved) -> None:
    given = made()
    fresh = mla_decode_plan(given.seq_lens, num_heads=2)
    with approved.raises(IllegalAddress):
        decoded(given, SplitPlan(fresh.work, fresh.num_splits, room=1))


@pytest.mark.parametrize("pattern", ["nan", "zeros"])
def test_surplus_items_are_read_by_a_grid_that_counts_and_must_be_written(pattern: str) -> None:
    given = made()
    with (
        inject(FAULTS.get("plan.surplus-blocks")),
        AllocationPoison(Poison(pattern, frozenset({"workspace"}))),
    ):
        plan = mla_decode_plan(given.seq_lens, num_heads=2)
    if pattern == "zeros":
        # Zeroed memory hides it: item (0, 0, 0) is no work for request 0.
        assert torch.equal(counted(given, metadata=plan)[[0, 2]], decoded(given)[[0, 2]])
    else:
        with pytest.raises(IllegalAddress, match=r"metadata\.work request"):
            counted(given, metadata=plan)
        # A kernel that masks them by their range first does not mind.
        assert torch.equal(decoded(given, plan)[[0, 2]], decoded(given)[[0, 2]])


def test_counters_are_zero_on_return_and_the_answer_is_that_of_the_other_kernels() -> None:
    given, workspace = made(), torch.zeros(8, dtype=torch.int32)
    for _ in range(2):
        assert torch.equal(counted(given, workspace)[[0, 2]], decoded(given)[[0, 2]])
        assert not workspace.any()
    assert torch.equal(counted(given, None)[[0, 2]], decoded(given)[[0, 2]])


@pytest.mark.parametrize(
    ("start", "arrived", "left"), [(0, 4, 0), (1, 3, 1), (3, 1, 3), (4, -1, 3), (-1, -1, 3)]
)
def test_the_last_piece_is_the_one_whose_ticket_says_so(
    start: int, arrived: int, left: int
) -> None:
    counters = torch.tensor([start, 0], dtype=torch.int32)
    assert count_arrivals(counters, torch.tensor([4, 0])).tolist() == [arrived, 0]
    assert counters.tolist() == [left, 0]


def test_a_row_that_no_piece_combines_stays_as_memory_was() -> None:
    workspace = torch.tensor([0, 0, 77], dtype=torch.int32)
    with AllocationPoison(Poison("nan", frozenset({"workspace"}))):
        out = counted(made(), workspace)
    assert bool(out[0].isfinite().all()) and bool(out[2].isnan().all())


def test_whether_two_kernels_can_share_scratch_depends_on_which_runs_first() -> None:
    """One leaves dirt, the other counts (vllm-project/vllm#25520): counting first is right, and
    right only once.
    """
    given, shared = made(), torch.zeros(8, dtype=torch.int32)
    want = decoded(given)[2]

    def leaves_dirt() -> None:
        shared.view(torch.float32).copy_(torch.linspace(1, 2, 8))

    assert torch.equal(counted(given, shared)[2], want)
    leaves_dirt()
    with AllocationPoison(Poison("nan", frozenset({"workspace"}))):
        assert bool(counted(given, shared)[2].isnan().all())


def test_a_kernel_writes_past_a_workspace_that_is_too_short_and_not_past_the_allocation() -> None:
    given, words = made(), torch.tensor([0, 0, 7], dtype=torch.int32)
    counted(given, words[:2])
    assert words.tolist() == [0, 0, 3]
    with pytest.raises(IllegalAddress, match="workspace word"):
        counted(given, torch.zeros(2, dtype=torch.int32))


def test_the_counted_kernel_is_called_with_a_poisoned_plan_as_the_others_are() -> None:
    given = made()
    plan = mla_decode_plan(given.seq_lens, num_heads=2)
    plan.num_splits.fill_(99)
    with pytest.raises(IllegalAddress, match=r"metadata\.num_splits"):
        torch_decode.mla_decode_counted(
            given.q,
            given.kv_cache,
            given.block_table,
            given.seq_lens,
            scale=given.scale,
            kv_scale=given.kv_scale,
            metadata=plan,
            workspace=torch.zeros(3, dtype=torch.int32),
        )
