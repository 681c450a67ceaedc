"""Calls of the ops that route tokens to experts: `route_experts` and `align_experts`."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.core.op_params import AlignExpertsParams, RouteExpertsParams
from harness.core.ops import aligned_sizes
from harness.judge.run_records import ChosenExperts, Observed
from harness.judge.targets.kernel_call import KernelCall, Setting, prepared
from harness.kernels.ops import expert_inputs, reference


def route_experts(params: RouteExpertsParams, setting: Setting) -> KernelCall:
    """A call of `route_experts`, beside its reference."""
    given, kept = prepared(expert_inputs.route_experts(params, setting.seed), setting)
    live = torch.arange(params.num_tokens) < given.num_live
    # A kernel that gets the number of live tokens promises nothing about the others. Without it, it routes them all.
    promised = live if "num_live" in setting.spec.takes else torch.ones_like(live)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """ids [T, k] int and weights [T, k] float32, beside the reference, each row sorted by id."""
        want = reference.route_experts(kept.logits, kept.num_experts_per_tok)
        # A kernel may list a token's experts in any order, so both outputs are sorted by id.
        order = outputs[0].argsort(dim=1)
        ids, weights = (output.gather(1, order) for output in outputs)
        return [
            Observed("ids", ids, live, want.ids, "", "token", "router.ids"),
            Observed("weights", weights, live, want.weights, "route_experts.weights", "token", "router.weights"),
        ]

    dims = {"T": params.num_tokens, "k": params.num_experts_per_tok}
    num_live = {"num_live": given.num_live} if "num_live" in setting.spec.takes else {}
    call = KernelCall.of("route_experts", given, kept, dims, (torch.int32, torch.float32), observe, **num_live)
    call.chosen = lambda outputs: [ChosenExperts("ids", outputs[0][promised], params.num_experts)]
    return call


def align_experts(params: AlignExpertsParams, setting: Setting) -> KernelCall:
    """A call of `align_experts`, beside its reference."""
    given, kept = prepared(expert_inputs.align_experts(params, setting.seed), setting)
    size, blocks = aligned_sizes(kept.topk_ids.numel(), params.num_experts, params.block_size)
    want = reference.align_experts(kept.topk_ids, num_experts=params.num_experts, block_size=params.block_size)
    runs = want.expert_ids.repeat_interleave(params.block_size)

    def observe(outputs: tuple[Tensor, ...]) -> list[Observed]:
        """sorted_ids [P], expert_ids [B] and num_padded [1], int32, beside the reference."""
        # A run may hold its choices in any order, so it is sorted: by its expert, then by what it holds.
        ids = outputs[0].clone()
        live = ids[: len(runs)].long()
        ids[: len(runs)] = live[(runs * (1 << 33) + live).argsort()].int()
        return [
            _live_part("sorted_ids", ids, want.sorted_ids, "entry"),
            _live_part("expert_ids", outputs[1], want.expert_ids, "block"),
            _live_part("num_padded", outputs[2], torch.tensor([len(runs)]), "count"),
        ]

    dims = {"P": size, "B": blocks}
    return KernelCall.of("align_experts", given, kept, dims, (torch.int32, torch.int32, torch.int32), observe)


def _live_part(name: str, found: Tensor, want: Tensor, row: str) -> Observed:
    expected = torch.zeros(len(found), dtype=torch.int64)
    expected[: len(want)] = want
    return Observed(name, found, torch.arange(len(found)) < len(want), expected, "", row, "router.ids")
