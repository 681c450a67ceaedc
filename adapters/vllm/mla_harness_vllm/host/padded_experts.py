"""vLLM's Triton experts on a batch with padded rows, which route to no expert: do live rows change?

The model runners mark rows of graph padding: the second since 0.27.0, the first since 0.31.0
(vllm-project/vllm#46428, vllm-project/vllm#48979). The router gives a marked row the expert -1. No
expert computes the row, so the workspace keeps what was there. Then vLLM takes one FP8 scale over
all rows of the workspace.

Router, experts and their matrix kernel are vLLM's; the kernel runs under Triton's interpreter.
Stand-ins replace five compiled operators. As in these, the aligner skips choices out of range, and
the maximum of the quantizer drops NaN.
"""

from __future__ import annotations

from contextlib import ExitStack
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm import _custom_ops, envs
from vllm.model_executor.layers.fused_moe.activation import MoEActivation
from vllm.model_executor.layers.fused_moe.config import fp8_w8a8_moe_quant_config
from vllm.model_executor.layers.fused_moe.experts import triton_moe
from vllm.model_executor.layers.fused_moe.router import fused_topk_router
from vllm.model_executor.layers.fused_moe.utils import moe_kernel_quantize_input
from vllm.v1.worker.gpu.input_batch import InputBuffers
from vllm.v1.worker.gpu_model_runner import GPUModelRunner

from harness.api import Observed, Run, kernel_function
from mla_harness_adapters.host_parts import (
    expert_weights,
    gated,
    made_without_init,
    patched,
    scaled_fp8_quant,
)
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.releases import (
    PADDING_OF_FIRST_RUNNER,
    PADDING_OF_ROUTER,
    PADDING_OF_SECOND_RUNNER,
)

NUM_LIVE = 5
NUM_ROWS = 8
NUM_EXPERTS = 4
TOP_K = 2
HIDDEN = 64
INTERMEDIATE = 32
BLOCKS = {
    "BLOCK_SIZE_M": 16,
    "BLOCK_SIZE_N": 32,
    "BLOCK_SIZE_K": 32,
    "GROUP_SIZE_M": 1,
    "SPLIT_K": 1,
}


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Route and compute the batch. Observe the live rows of the experts' output."""
    random = torch.Generator().manual_seed(poison.seed)
    x = torch.randn(NUM_ROWS, HIDDEN, generator=random).bfloat16()
    logits = torch.randn(NUM_ROWS, NUM_EXPERTS, generator=random)
    # As vLLM's Triton decode leaves the rows of padding: it divides 0 by 0 there.
    x[NUM_LIVE:] = torch.nan
    w1, w1_scale = expert_weights(NUM_EXPERTS, 2 * INTERMEDIATE, HIDDEN, random)
    w2, w2_scale = expert_weights(NUM_EXPERTS, HIDDEN, INTERMEDIATE, random)
    per_token = params.amax == "per_token"
    scales = fp8_w8a8_moe_quant_config(
        w1_scale=w1_scale, w2_scale=w2_scale, per_act_token_quant=per_token
    )
    experts = made_without_init(
        triton_moe.TritonExperts,
        quant_config=scales,
        moe_config=SimpleNamespace(swiglu_limit=None),
        activation_config=SimpleNamespace(clamp_limit=None),
        quantization_emulation=False,
        _lora_context=None,
    )
    workspaces = [
        poison.empty(NUM_ROWS * TOP_K * 2 * HIDDEN, dtype=torch.bfloat16, site="workspace")
        for _ in range(2)
    ]
    out = torch.zeros(NUM_ROWS, HIDDEN, dtype=torch.bfloat16)
    with _operators(_padding(params.runner)):
        weights, ids, _ = fused_topk_router.fused_topk(x, logits, TOP_K, True)
        x8, x_scale = moe_kernel_quantize_input(x, None, scales.quant_dtype, per_token, None)
        experts.apply(
            out,
            x8,
            w1,
            w2,
            weights,
            ids,
            MoEActivation.SILU,
            NUM_EXPERTS,
            expert_map=None,
            a1q_scale=x_scale,
            a2_scale=None,
            workspace13=workspaces[0],
            workspace2=workspaces[1],
            expert_tokens_meta=None,
            apply_router_weight_on_input=False,
        )
    live = torch.arange(NUM_ROWS) < NUM_LIVE
    return Run(
        poison.pattern,
        [Observed("experts' output", out, live, describe="token", site="workspace")],
    )


def _padding(runner: str) -> Tensor | None:
    """The marks of padded rows [T] that this release's runner gives to the router; None if it marks
    none.
    """
    if runner == "v1":
        buffers = made_without_init(
            GPUModelRunner, is_padding=torch.zeros(NUM_ROWS, dtype=torch.bool)
        )
        if not PADDING_OF_FIRST_RUNNER.of(buffers):
            return None
        marked: Tensor = buffers._prepare_padding_mask(NUM_LIVE, NUM_ROWS)
        return marked
    if (
        not PADDING_OF_SECOND_RUNNER.of(InputBuffers(1, NUM_ROWS, torch.device("cpu")))
        or not envs.VLLM_MOE_SKIP_PADDING
    ):
        return None
    return torch.arange(NUM_ROWS) >= NUM_LIVE


def _operators(padding: Tensor | None) -> ExitStack:
    """Replace the compiled operators, and give `padding` to the router, for the life of the
    block.
    """
    stack = ExitStack()
    compiled = {
        "topk_softmax": _topk_softmax,
        "scaled_fp8_quant": scaled_fp8_quant,
        "moe_align_block_size": _moe_align_block_size,
        "moe_sum": lambda given, output, *rest: output.copy_(given.float().sum(dim=1)),
    }
    stack.enter_context(patched(_custom_ops, compiled))
    silu_and_mul = lambda self, activation, output, given, **options: output.copy_(gated(given))  # noqa: E731
    stack.enter_context(mock.patch.object(triton_moe.TritonExperts, "activation", silu_and_mul))
    stack.enter_context(
        mock.patch.object(triton_moe, "try_get_optimal_moe_config", lambda *a, **k: BLOCKS)
    )
    if PADDING_OF_ROUTER.of(fused_topk_router):
        context = SimpleNamespace(is_padding=padding)
        stack.enter_context(
            mock.patch.object(fused_topk_router, "is_forward_context_available", lambda: True)
        )
        stack.enter_context(
            mock.patch.object(fused_topk_router, "get_forward_context", lambda: context)
        )
    return stack


def _topk_softmax(
    topk_weights: Tensor,
    topk_ids: Tensor,
    token_expert_indices: Tensor,
    gating_output: Tensor,
    renormalize: bool = False,
    e_score_correction_bias: Tensor | None = None,
    is_padding: Tensor | None = None,
) -> None:
    top, chosen = gating_output.float().softmax(dim=-1).topk(topk_ids.shape[1], dim=-1)
    topk_weights.copy_(top / top.sum(dim=-1, keepdim=True) if renormalize else top)
    topk_ids.copy_(chosen)
    if is_padding is not None:
        topk_ids[is_padding] = -1


def _moe_align_block_size(
    topk_ids: Tensor,
    num_experts: int,
    block_size: int,
    sorted_token_ids: Tensor,
    experts_ids: Tensor,
    num_tokens_post_pad: Tensor,
    *rest: Any,
) -> None:
    choices = topk_ids.flatten()
    kept = ((choices >= 0) & (choices < num_experts)).nonzero().flatten()
    places, experts, count = kernel_function("align_experts", "torch")(
        choices[kept][:, None], num_experts=num_experts, block_size=block_size
    )
    sorted_token_ids.fill_(len(choices))
    used = int(count)
    # The harness's alignment numbers the choices that it is given. The number behind them is
    # padding, for which vLLM has the number of all choices.
    numbers = torch.cat([kept, torch.tensor([len(choices)])])
    sorted_token_ids[:used] = numbers[places[:used].long()].int()
    experts_ids.zero_()
    experts_ids[: used // block_size] = experts[: used // block_size]
    num_tokens_post_pad.copy_(count)
