"""Rotary embeddings of vLLM's CPU build in torch, in place of its wrong op.

`torch.ops._C.rotary_embedding` of a CPU takes a query of [tokens, heads, 64] for one of two
dimensions: heads stay unrotated, and numbers beside a strided key are overwritten. MLA hands over
three dimensions. So every answer is wrong, and no other bug of the engine can be seen behind it.
docs/findings/23-cpu-rotary.md has the finding. No torch here.
"""

from __future__ import annotations

import importlib

VARIABLE = "MLA_HARNESS_CPU_ROTARY"
"""`native`: install the workaround."""
NATIVE = "native"


def install(value: str) -> None:
    """Have rotary embeddings computed by vLLM's own torch code if `value` is `native`."""
    if value == NATIVE:
        rotary = importlib.import_module("vllm.model_executor.layers.rotary_embedding.base")
        rotary.RotaryEmbedding.forward_cpu = rotary.RotaryEmbedding.forward_native
