"""vLLM's stages before sparse attention, called as vLLM calls them: logits of DeepGEMM, five top-k,
the conversion.
"""

from __future__ import annotations

import functools
import importlib
from typing import Any

import torch
from torch import Tensor

from harness.api import Refused
from mla_harness_adapters.kernel_rows import row_lengths

_TOPK = "vllm.model_executor.layers.indexer_topk"
LANES = 128
"""Lanes of a tile of the conversion; a list has a multiple of it."""
COOPERATIVE_ROWS = 64
"""The most rows of the cooperative top-k. vLLM takes another one for more."""
NATIVE_TOKENS = (1, 2, 4)
"""Numbers of query tokens of a request that DeepGEMM's kernel of Hopper takes."""


def deepgemm_logits(
    q: Tensor, weights: Tensor, kv_cache: Tensor, block_table: Tensor, seq_lens: Tensor
) -> Tensor:
    """DeepGEMM's paged logits with a plan of their own: q [B, S, X, 128] e4m3, weights [B, S, X]
    float32, kv_cache [N, 64, 132] uint8 -> [B * S, M * 64] float32.

    block_table [B, M] int32 has the pages of each request, seq_lens [B] int32 its tokens. vLLM
    gives the kernel a length for each query token, [B, S]; other numbers of tokens than the kernel
    of Hopper takes become requests of one token, as in vLLM.
    """
    module = importlib.import_module("vllm.utils.deep_gemm")
    num_requests, num_tokens, num_heads, _ = q.shape
    page = kv_cache.shape[1]
    columns = block_table.shape[1] * kv_cache.shape[1]
    lengths = row_lengths(seq_lens, num_tokens).view(-1, num_tokens)
    if num_tokens not in NATIVE_TOKENS:
        q = q.flatten(0, 1)[:, None]
        lengths = lengths.view(-1, 1)
        block_table = block_table.repeat_interleave(num_tokens, dim=0)
    sms = torch.cuda.get_device_properties(q.device).multi_processor_count
    plan = module.get_paged_mqa_logits_metadata(lengths, page, sms)
    heads = weights.reshape(num_requests * num_tokens, num_heads)
    logits = module.fp8_fp4_paged_mqa_logits(
        (q, None), kv_cache.unsqueeze(-2), heads, lengths, block_table, plan, columns
    )
    found: Tensor = logits[:, :columns]
    return found.contiguous()


def _select(
    backend: str, logits: Tensor, seq_lens: Tensor, *, topk: int, out: Tensor | None = None
) -> Tensor:
    """vLLM's top-k of one backend: logits [B * S, L] float32, seq_lens [B] int32 -> [B * S, K]
    int32, in `out`.

    Lengths are given for each query token, [B, S], as vLLM does for drafts.
    """
    if backend == "cooperative" and len(logits) > COOPERATIVE_ROWS:
        raise Refused(
            f"vLLM's cooperative top-k takes at most {COOPERATIVE_ROWS} rows, not {len(logits)}"
        )
    workspace = importlib.import_module("vllm.v1.worker.workspace")
    if workspace._manager is None:
        workspace.init_workspace_manager(logits.device)
    num_tokens = len(logits) // len(seq_lens)
    lengths = row_lengths(seq_lens, num_tokens).view(-1, num_tokens)
    found = (
        torch.empty(len(logits), topk, dtype=torch.int32, device=logits.device)
        if out is None
        else out
    )
    select = importlib.import_module(_TOPK).get_indexer_topk(backend)
    select(logits, lengths, num_tokens, found, topk, logits.shape[1])
    return found


cooperative_topk = functools.partial(_select, "cooperative")
persistent_topk = functools.partial(_select, "persistent")
per_row_topk = functools.partial(_select, "per_row")
flashinfer_topk = functools.partial(_select, "flashinfer")
torch_topk = functools.partial(_select, "torch")


def map_indices(
    positions: Tensor,
    block_table: Tensor,
    requests: Tensor,
    *,
    page_size: int,
    out: Tensor | None = None,
) -> Tensor:
    """`triton_convert_req_index_to_global_index` of positions [T, K] int32: the slots, in out [T,
    K] int32 if it is given.

    block_table [B, M] int32 has the pages of each request, requests [T] int32 the request of each
    token. Since 0.33 vLLM asserts that `requests` covers the same tokens, so only the first T are
    given.
    """
    convert: Any = importlib.import_module(
        "vllm.v1.attention.backends.mla.sparse_utils"
    ).triton_convert_req_index_to_global_index
    slots: Tensor = convert(
        requests[: len(positions)],
        block_table,
        positions,
        BLOCK_SIZE=page_size,
        NUM_TOPK_TOKENS=positions.shape[1],
        BLOCK_N=LANES,
        out=out,
    )
    return slots
