"""SGLang's Triton experts on one rank of several: do choices of experts on other ranks change this
rank's rows?

A choice of an expert on another rank is -1 here. The activation skips its row, so memory keeps what
was there. Then SGLang takes one FP8 scale over all rows. The sequence of launches and both matrix
kernels are SGLang's; the kernels run under Triton's interpreter. Stand-ins replace the activation,
the quantizer and the alignment. As the compiled ones do, the activation skips rows of -1, the
alignment puts them into blocks of their own, and the maximum drops NaN.
"""

from __future__ import annotations

import inspect
import sys
from contextlib import ExitStack
from functools import partial
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from sglang.srt.layers.moe.moe_runner.triton_utils import fused_moe
from torch import Tensor
from torch_poison.allocations import AllocationPoison
from torch_poison.patterns import Poison

from harness.api import Observed, Run, kernel_function
from mla_harness_adapters.host_parts import expert_weights, gated, patched, scaled_fp8_quant
from mla_harness_sglang.host.scheduling import publish
from mla_harness_sglang.params import SglangHostParams

NUM_TOKENS = 8
NUM_EXPERTS = 4
HIDDEN = 64
INTERMEDIATE = 32
BLOCKS = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}


def run(poison: Poison, params: SglangHostParams) -> Run:
    """Compute the tokens with every other second choice on another rank.

    Observe all rows: each has one choice here.
    """
    publish(params.page_size)
    random = torch.Generator().manual_seed(poison.seed)
    x = torch.randn(NUM_TOKENS, HIDDEN, generator=random).bfloat16()
    w1, w1_scale = expert_weights(NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN, random)
    w2, w2_scale = expert_weights(NUM_EXPERTS, HIDDEN, INTERMEDIATE, random)
    ids = torch.randint(0, NUM_EXPERTS, (NUM_TOKENS, 2), generator=random, dtype=torch.int32)
    ids[::2, 1] = -1
    # The harness's alignment knows no negative expert. Expert -1 is number 0 there, and -1 again in
    # `expert_ids`.
    sorted_ids, experts, count = kernel_function("align_experts", "torch")(
        ids + 1, num_experts=NUM_EXPERTS + 1, block_size=BLOCKS["BLOCK_SIZE_M"]
    )
    sequence = partial(
        fused_moe._fused_moe_kernel_sequence,
        hidden_states=x,
        w1=w1,
        w2=w2,
        w1_scale=w1_scale,
        w2_scale=w2_scale,
        topk_ids=ids,
        topk_weights=torch.full(ids.shape, 0.5),
        sorted_token_ids=sorted_ids,
        expert_ids=(experts - 1).int(),
        num_tokens_post_padded=count,
        config=BLOCKS,
        down_config=None,
        activation="silu",
        is_gated=True,
        inplace=True,
        filter_expert=True,
        use_fp8_w8a8=True,
        per_channel_quant=params.amax == "per_token",
        routed_scaling_factor=1.0,
    )
    with _operators(), AllocationPoison(poison, {}, keep=False):
        out = sequence(**_unused(sequence))
    live = torch.ones(NUM_TOKENS, dtype=torch.bool)
    return Run(
        poison.pattern,
        [Observed("experts' output", out, live, describe="token", site="workspace")],
    )


def _unused(call: partial[Any]) -> dict[str, bool | None]:
    """Features that a call does not use: arguments that it lacks and that have no default."""
    return {
        name: False if name.startswith(("use_", "no_", "down_", "up_", "apply_")) else None
        for name, parameter in inspect.signature(call.func).parameters.items()
        if name not in call.keywords and parameter.default is parameter.empty
    }


def _operators() -> ExitStack:
    """Replace the compiled operators of the path for CUDA, for the life of the block."""
    stack = ExitStack()
    kernels = sys.modules[fused_moe.invoke_fused_moe_kernel.__module__]
    off = SimpleNamespace(moe=SimpleNamespace(enable_fused_moe_sum_all_reduce=False))
    of_cuda = {"_is_cuda": True, "silu_and_mul": _silu_and_mul, "get_exec": lambda: off}
    stack.enter_context(patched(fused_moe, of_cuda, create=True))
    stack.enter_context(
        mock.patch.multiple(kernels, create=True, scaled_fp8_quant=scaled_fp8_quant, padding_size=0)
    )
    return stack


def _silu_and_mul(
    given: Tensor, out: Tensor, expert_ids: Tensor | None = None, expert_step: int = 1
) -> None:
    kept = torch.ones(len(given), dtype=torch.bool) if expert_ids is None else expert_ids >= 0
    out[kept] = gated(given).to(out.dtype)[kept]
