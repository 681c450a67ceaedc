"""vLLM's chunked prefill in the batch order of each model runner: does the merge use the rows of
the right requests?

Up to 0.27.1 `MLACommonMetadataBuilder.build` counts the requests with context and takes that many
from the front of the prefills (vllm-project/vllm#36540), so requests with context must come first.
The first runner orders its batch this way. The second runner sorts by scheduled tokens alone
(vllm-project/vllm#47381 has the order that it should have for speculative decodes). The attention
kernels are the harness's. They write every row, as FlashAttention-3 does, so wrong rows are finite.
"""

from __future__ import annotations

from torch import Tensor
from torch_poison.patterns import Poison
from vllm.v1.attention.backends.mla import flashmla
from vllm.v1.attention.backends.utils import reorder_batch_to_split_decodes_and_prefills
from vllm.v1.worker.gpu.model_runner import GPUModelRunner

from harness.api import Run, kernel_function
from mla_harness_vllm.host.prefill_step import CHUNKS, DECODE, FRESH, SCALE, Inputs, PrefillStep
from mla_harness_vllm.host.runner_order import ScheduledRequest, first_runner, second_runner
from mla_harness_vllm.params import VllmHostParams

CONTEXT_ATTENTION = kernel_function("context_attention", "torch")


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Run one step of a decode, a prompt chunk with context and a fresh prompt, and observe its
    prefills.
    """
    requests = (FRESH, CHUNKS[params.chunk], DECODE)
    return PrefillStep(_ordered(requests, params.runner), Inputs(poison, requests), _every_row).run(
        poison
    )


def _ordered(requests: tuple[ScheduledRequest, ...], order: str) -> tuple[ScheduledRequest, ...]:
    if order == "v2":
        return second_runner(GPUModelRunner, requests)
    threshold = flashmla.FlashMLAMetadataBuilder.reorder_batch_threshold
    return first_runner(
        reorder_batch_to_split_decodes_and_prefills, requests, decode_threshold=threshold
    )


def _every_row(
    q: Tensor, k: Tensor, v: Tensor, starts: Tensor, keys: Tensor
) -> tuple[Tensor, Tensor]:
    """New tokens over a chunk of context. Rows without context are 0 with an lse of -inf."""
    out, lse = CONTEXT_ATTENTION(q, k, v, starts, keys, scale=SCALE)
    return out.masked_fill(lse.isneginf().T[..., None], 0.0), lse
