"""vLLM's Triton MLA decode of a padded batch, then its FP8 quantization: do padded rows change live
rows?

Both are vLLM's. The kernel runs under Triton's interpreter. Padded rows have length 0, so the
kernel's combine step divides 0 by 0 (vllm-project/vllm#57017). A scale for the whole tensor carries
this NaN to every row (vllm-project/vllm#37442), a scale for each token does not.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.model_executor.layers.quantization.input_quant_fp8 import GroupShape, QuantFP8
from vllm.v1.attention.backends.mla.triton_mla import TritonMLAImpl

from harness.api import Observed, Run
from mla_harness_adapters.host_parts import made_without_init
from mla_harness_vllm.params import VllmHostParams

LENGTHS = (40, 5, 0, 0)
"""Two live requests and two padded rows."""
PAGE_SIZE = 16
NUM_HEADS = 16
RANK = 512
ROPE = 64
NUM_PAGES = 3


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Decode the batch and quantize its output. Observe the live rows of both."""
    random = torch.Generator().manual_seed(poison.seed)
    live = torch.tensor([length > 0 for length in LENGTHS])
    q = torch.randn(len(LENGTHS), NUM_HEADS, RANK + ROPE, generator=random)
    cache = torch.randn(1 + len(LENGTHS) * NUM_PAGES, PAGE_SIZE, RANK + ROPE, generator=random)
    poison.fill_(q[int(live.sum()) :], "graph.pad_rows")
    # Block 0 is vLLM's null block. No request has it.
    table = torch.arange(1, 1 + len(LENGTHS) * NUM_PAGES, dtype=torch.int32).view(
        len(LENGTHS), NUM_PAGES
    )
    metadata = SimpleNamespace(
        decode=SimpleNamespace(
            block_table=table, seq_lens=torch.tensor(LENGTHS, dtype=torch.int32)
        ),
        max_seq_len=max(LENGTHS),
        causal=True,  # read since 0.27.1
    )
    impl = made_without_init(
        TritonMLAImpl, kv_lora_rank=RANK, scale=(RANK + ROPE) ** -0.5, _sm_count=1
    )
    out, _ = impl.forward_mqa(q, cache, metadata, SimpleNamespace(_k_scale=torch.ones(())))
    observed = [
        _observed("decode output", out, live),
        _observed(
            "quantized decode output", _quantized(out.view(len(LENGTHS), -1), params.amax), live
        ),
    ]
    return Run(poison.pattern, list(observed))


def _quantized(x: Tensor, amax: str) -> Tensor:
    """`x` after vLLM's dynamic FP8 quantization, dequantized: float32 [T, K]."""
    shape = GroupShape.PER_TENSOR if amax == "per_tensor" else GroupShape.PER_TOKEN
    layer: Any = SimpleNamespace(
        is_group_quant=False, static=False, group_shape=shape, num_token_padding=None
    )
    quantized, scale = QuantFP8.forward_native(layer, x)
    read: Tensor = quantized.float() * scale
    return read


def _observed(name: str, tensor: Tensor, live: Tensor) -> Observed:
    return Observed(name, tensor, live, describe="request", site="graph.pad_rows")
