"""vLLM's block manager: does it report the new blocks of an MLA layer, so that a worker zeroes
them?

Manager and pool are vLLM's. The zeroing of reported blocks and the decode kernel are the harness's.
The kernel masks unused values by multiplying them with 0, so a page must be finite to its end
(vllm-project/vllm#43961).
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch_poison.patterns import Poison
from vllm.v1.core import single_type_kv_cache_manager as managers
from vllm.v1.core.block_pool import BlockPool
from vllm.v1.kv_cache_interface import MLAAttentionSpec

from harness.api import Observed, Run, kernel_function
from mla_harness_adapters.host_parts import of_all_rows
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.params import VllmHostParams

PAGE_SIZE = 64
"""The decode kernel reads whole pages of 64 tokens."""
NUM_BLOCKS = 12
WIDTH = 576
NUM_HEADS = 4
STEPS = (("a", 40), ("b", 70), ("a", 65), ("b", 130))
"""The request of each step and its stored tokens after the step: one page, two pages, then one page
more for each.
"""


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Store tokens of two requests step by step, and decode each request after each of its
    steps.
    """
    random = torch.Generator().manual_seed(poison.seed)
    manager = _manager()
    # Blocks hold values of their last owner: in a hybrid model the state of a linear-attention
    # layer.
    cache = poison.empty(NUM_BLOCKS, PAGE_SIZE, WIDTH, dtype=torch.float32, site="kv.new")
    cache[0] = 0.0
    tables: dict[str, list[int]] = {}
    found = Run(poison.pattern)
    for step, (request, length) in enumerate(STEPS):
        given = manager.allocate_new_blocks(
            request, num_tokens=length, num_tokens_main_model=length
        )
        stored = dict(STEPS[:step]).get(request, 0)
        tables.setdefault(request, []).extend(block.block_id for block in given)
        cache[manager.take_new_block_ids()] = 0.0
        for slot in range(stored, length):
            page, offset = divmod(slot, PAGE_SIZE)
            cache[tables[request][page], offset] = torch.randn(WIDTH, generator=random)
        found.evidence.append(_decoded(step, request, length, cache, tables[request], random))
    return found


def _manager() -> Any:
    """vLLM's manager of an MLA layer's blocks. Its arguments differ between releases."""
    pool = BlockPool(num_gpu_blocks=NUM_BLOCKS, enable_caching=False, hash_block_size=PAGE_SIZE)
    spec = MLAAttentionSpec(
        block_size=PAGE_SIZE, num_kv_heads=1, head_size=WIDTH, dtype=torch.bfloat16
    )
    kind = managers.FullAttentionManager
    makers = [vars(owner)["__init__"] for owner in kind.__mro__ if "__init__" in vars(owner)]
    known = {
        "scheduler_block_size": PAGE_SIZE,
        "needs_kv_cache_zeroing": True,
        "max_admission_blocks_per_request": 10**9,
    }
    return kind(
        spec,
        block_pool=pool,
        enable_caching=False,
        kv_cache_group_id=0,
        **accepted(known, *makers),
    )


def _decoded(
    step: int, request: str, length: int, cache: Tensor, table: list[int], random: torch.Generator
) -> Observed:
    """Decode output of a request, with float64 attention over its own tokens as the expected
    output.
    """
    q = torch.randn(1, 1, NUM_HEADS, WIDTH, generator=random)
    scale = WIDTH**-0.5
    block_table = torch.tensor([table], dtype=torch.int32)
    out, _ = kernel_function("mla_decode", "tiled-multiply")(
        q, cache, block_table, torch.tensor([length], dtype=torch.int32), scale=scale
    )
    rank = out.shape[-1]
    keys = cache[table].reshape(-1, WIDTH)[:length].double()
    weights = torch.softmax(q[0, 0].double() @ keys.T * scale, dim=-1)
    expected = (weights @ keys[:, :rank])[None]
    describe = f"request {request}, query token"
    return of_all_rows(
        f"decode output, step {step}", out[0], expected, "mla_decode.out.fp32", describe
    )
