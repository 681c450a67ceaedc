"""Routed experts with a trap: one more expert than the router knows, full of poison."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F
from torch_poison.patterns import Poison

from harness.core.seams import seam
from harness.engine.batch import Batch
from harness.engine.kernels import ActivationQuantizer, Kernels, live_rows, pad_to_longest_rank
from harness.engine.model.layers import MoE
from harness.engine.poisoned import trap_expert
from harness.memory.bounds import check_indices
from harness.memory.graph.launch import launch


class RoutedExperts:
    """A layer's experts 0 .. X-1 and the trap expert X, full of the poison's `router.ids`.

    An id from uninitialised memory leads to the trap, or out of bounds if the poison is strict.
    Expert-parallel ranks are played in one process; each of the `num_ranks` has a share of the
    experts and its own trap.
    """

    def __init__(
        self, moe: MoE, kernels: Kernels, poison: Poison, num_ranks: int = 1, moves: bool = False
    ) -> None:
        self._moe = moe
        self._kernels = kernels
        self._poison = poison
        self._num_ranks = num_ranks
        num_experts = len(moe.experts.gate_proj)
        device = moe.experts.gate_proj.device
        self.expert_at = torch.arange(num_experts, device=device)
        """The expert [X] in each place; rank r has the places from r * X / num_ranks on."""
        self.place_of = (
            torch.arange(num_experts, dtype=torch.int32, device=device) if moves else None
        )
        """The place [X] int32 of each expert.

        Graphs hold it. None in an engine that never moves experts.
        """
        self.ranks = [
            [torch.cat((weight, trap_expert(weight, poison))) for weight in shard]
            for shard in self.placed()
        ]

    def placed(self) -> list[list[Tensor]]:
        """The gate, up and down projections of each rank, in the order of its places."""
        experts = self._moe.experts
        stacked = (experts.gate_proj, experts.up_proj, experts.down_proj)
        parts = (weight[self.expert_at].chunk(self._num_ranks) for weight in stacked)
        return [list(shard) for shard in zip(*parts, strict=True)]

    def move(self) -> None:
        """Move each expert by one place more than half the places, in place: the weights, and the
        map of places.
        """
        assert self.place_of is not None
        self.expert_at = self.expert_at.roll(len(self.expert_at) // 2 + 1)
        for held, moved in zip(self.ranks, self.placed(), strict=True):
            for tensor, weight in zip(held, moved, strict=True):
                # In place, because graphs hold the address; the last row is the trap.
                # Never the trap: an id of unwritten memory must find poison after a move as well.
                tensor[:-1].copy_(weight)
        update_places(self, self.expert_at.argsort().to(torch.int32))

    def __call__(
        self, x: Tensor, batch: Batch, quantize: ActivationQuantizer
    ) -> tuple[Tensor, Tensor]:
        """x: [T, hidden] -> the experts' sum [T, hidden], and the ids [T, k] int32."""
        k = self._moe.num_experts_per_tok
        ids, weights = self._route(self._moe.gate(x), k, batch)
        ids = launch(hand_over_ids, ids, self._poison)
        rounded = quantize(x, batch)
        rows = [rounded, ids if self.place_of is None else places_of(ids, self.place_of), weights]
        if len(x) < quantize.rank_tokens:
            # Data-parallel ranks gather all their rows.
            rows = [
                launch(pad_to_longest_rank, part, quantize.rank_tokens, self._poison)
                for part in rows
            ]
            # The rows behind are unwritten, and an id there would send poison to an expert.
            rows[1] = launch(mask_padding, rows[1], len(x))
        out = self._apply(*rows)[: len(x)]
        if self._moe.shared_experts is not None:
            out = out + self._moe.shared_experts(rounded)
        return out, ids

    def _route(self, logits: Tensor, k: int, batch: Batch) -> tuple[Tensor, Tensor]:
        """Expert ids and weights [T, k] of logits [T, X]; ids of padding may be -1."""
        if "num_live" not in self._kernels.route_experts.spec.takes:
            ids, weights = self._kernels.route_experts(logits, num_experts_per_tok=k)
            return ids, weights
        num_live = live_rows(batch)
        ids, weights = self._kernels.route_experts(logits, num_experts_per_tok=k, num_live=num_live)
        return (ids if num_live is None else launch(mask_padding, ids, num_live)), weights

    def _apply(self, x: Tensor, ids: Tensor, weights: Tensor) -> Tensor:
        """The sum [T, hidden] over all ranks."""
        out = torch.zeros_like(x)
        count = self._moe.experts.gate_proj.shape[0] // len(self.ranks)
        for rank, shard in enumerate(self.ranks):
            local = launch(
                ids_of_rank, ids, rank * count, None if shard is self.ranks[-1] else count
            )
            out = out + launch(apply_experts, x, local, weights, *shard)
        return out


@seam("experts.places-rebound")
def update_places(experts: RoutedExperts, places: Tensor) -> None:
    """Write the new `places` [X] int32 of each expert into the tensor that graphs hold
    (sgl-project/sglang#4957).
    """
    assert experts.place_of is not None
    experts.place_of.copy_(places)


@seam("experts.graph-without-places")
def places_of(ids: Tensor, place_of: Tensor) -> Tensor:
    """Expert ids [T, k] int32 as places, by place_of [X] int32, in a captured forward too
    (sgl-project/sglang#18213).
    """
    placed: Tensor = launch(look_up_places, ids, place_of)
    return placed


def look_up_places(ids: Tensor, place_of: Tensor) -> Tensor:
    """The places of expert ids [T, k] int32, by place_of [X] int32; an id that is no expert stays
    what it is.
    """
    known = (ids >= 0) & (ids < len(place_of))
    return torch.where(known, place_of[torch.where(known, ids, 0).long()], ids)


@seam("router.unmasked-padding-ids", "router.unwritten-rank-padding")
def mask_padding(ids: Tensor, num_live: Tensor | int) -> Tensor:
    """Expert ids [T, k] with -1 (no expert) in the rows from `num_live` [1] on.

    The other rows are unwritten, by the router (sgl-project/sglang#28378) or to pad a rank
    (ROCm/ATOM#1229).

    ids is int32; a count on the device is int32 too.
    """
    live = torch.arange(len(ids), device=ids.device) < num_live
    return torch.where(live[:, None], ids, -1)


def ids_of_rank(ids: Tensor, first: int, count: int | None) -> Tensor:
    """The `ids` [T, k] int32 within the rank that holds `count` experts from `first` on; -1 for
    experts of other ranks.

    The last rank has no `count` and keeps ids past the end, so that a wrong id stays wrong.
    """
    elsewhere = (ids < first) & (ids >= 0) | (ids == -1)
    if count is not None:
        elsewhere |= ids >= first + count
    return torch.where(elsewhere, -1, ids - first)


@seam("router.int64-ids")
def hand_over_ids(ids: Tensor, poison: Poison) -> Tensor:
    """The expert ids [T, k] int32 as the experts' kernel reads them.

    A router that writes 32-bit ids into a 64-bit buffer leaves half of it unwritten
    (vllm-project/vllm#38359, vllm-project/vllm#55147).
    """
    return ids


def apply_experts(
    x: Tensor, ids: Tensor, weights: Tensor, gate_proj: Tensor, up_proj: Tensor, down_proj: Tensor
) -> Tensor:
    """The weighted sum of each token's experts.

    x: [T, hidden], ids: [T, k] int32, weights: [T, k], gate_proj and up_proj: [X + 1, I, hidden],
    down_proj: [X + 1, hidden, I] -> [T, hidden]. An id of -1 adds nothing. Raises IllegalAddress
    past the trap.
    """
    present = present_experts(ids, gate_proj.shape[0])
    is_here = present >= 0
    chosen = check_indices(
        # -1 looks up expert 0, whose share is dropped below. Any other negative id stays, and is
        # refused.
        torch.where(is_here | (present < -1), present, 0),
        gate_proj.shape[0],
        "expert ids",
    )
    column = x.unsqueeze(-1)
    out = torch.zeros_like(x)
    for slot in range(ids.shape[1]):
        expert = chosen[:, slot]
        gated = F.silu(torch.bmm(gate_proj[expert], column)) * torch.bmm(up_proj[expert], column)
        share = torch.bmm(down_proj[expert], gated).squeeze(-1) * weights[:, slot : slot + 1].to(
            x.dtype
        )
        # A select, because a product with 0 would keep a NaN of expert 0.
        out += torch.where(is_here[:, slot : slot + 1], share, 0.0)
    return out


@seam("router.minus-one-from-the-end")
def present_experts(ids: Tensor, num_experts: int) -> Tensor:
    """The index of each of `ids` [T, k] int32 among `num_experts` weights, trap included; -1 stays
    no expert.

    Used as an index, -1 would be an expert that was not chosen (vllm-project/vllm#46408).
    """
    return ids
