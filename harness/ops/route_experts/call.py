"""A call of `route_experts`, beside its reference."""

from __future__ import annotations

import torch
from torch import Tensor

from harness.ops.parts.call import KernelCall, Setting, prepared
from harness.ops.parts.judged import Chosen, Rows
from harness.ops.route_experts import inputs, reference
from harness.ops.route_experts.params import RouteExpertsParams


def prepare(params: RouteExpertsParams, setting: Setting) -> KernelCall:
    """A call of `route_experts`, beside its reference."""
    given, kept = prepared(inputs.draw(params, setting.seed), setting)
    live = torch.arange(params.num_tokens) < given.num_live
    # A kernel that gets the number of live tokens promises nothing about the others. Without it, it
    # routes them all.
    promised = live if "num_live" in setting.spec.takes else torch.ones_like(live)

    def observe(outputs: tuple[Tensor, ...]) -> list[Rows]:
        """ids [T, k] int and weights [T, k] float32, beside the reference, each row sorted by
        id.
        """
        want = reference.expected(kept.logits, kept.num_experts_per_tok)
        # A kernel may list a token's experts in any order, so both outputs are sorted by id.
        order = outputs[0].argsort(dim=1)
        ids, weights = (output.gather(1, order) for output in outputs)
        return [
            Rows("ids", ids, live, want.ids, "", "token", "router.ids"),
            Rows(
                "weights",
                weights,
                live,
                want.weights,
                "route_experts.weights",
                "token",
                "router.weights",
            ),
        ]

    dims = {"T": params.num_tokens, "k": params.num_experts_per_tok}
    num_live = {"num_live": given.num_live} if "num_live" in setting.spec.takes else {}
    call = KernelCall.of(
        "route_experts", given, kept, dims, (torch.int32, torch.float32), observe, **num_live
    )
    call.chosen = lambda outputs: [Chosen("ids", outputs[0][promised], params.num_experts)]
    return call
