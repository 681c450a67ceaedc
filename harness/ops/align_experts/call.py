"""A call of `align_experts`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.align_experts import inputs, reference
from harness.ops.align_experts.params import AlignExpertsParams
from harness.ops.align_experts.sizes import aligned_sizes
from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Rows


def prepare(params: AlignExpertsParams, setting: Setting) -> KernelCall:
    """A call of `align_experts`, beside its reference."""
    given, kept = prepared(inputs.draw(params, setting.seed), setting)
    size, blocks = aligned_sizes(kept.topk_ids.numel(), params.num_experts, params.block_size)
    want = reference.expected(
        kept.topk_ids, num_experts=params.num_experts, block_size=params.block_size
    )
    runs = want.expert_ids.repeat_interleave(params.block_size)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """sorted_ids [P], expert_ids [B] and num_padded [1], int32, beside the reference."""
        # A run may hold its choices in any order, so it is sorted: by its expert, then by what it
        # holds.
        ids = outputs[0].clone()
        live = ids[: len(runs)].long()
        # The expert stands above all bits of a choice, so that one sort keeps the runs apart.
        ids[: len(runs)] = live[(runs * (1 << 33) + live).argsort()].int()
        return [
            _live_part("sorted_ids", ids, want.sorted_ids, "entry"),
            _live_part("expert_ids", outputs[1], want.expert_ids, "block"),
            _live_part("num_padded", outputs[2], torch.tensor([len(runs)]), "count"),
        ]

    dims = {"Q": size, "A": blocks}
    return KernelCall.of(
        "align_experts", given, kept, dims, (torch.int32, torch.int32, torch.int32), observe
    )


def _live_part(name: str, found: Tensor, want: Tensor, row: str) -> Rows:
    expected = torch.zeros(len(found), dtype=torch.int64)
    expected[: len(want)] = want
    return Rows(name, found, torch.arange(len(found)) < len(want), expected, "", row, "router.ids")
