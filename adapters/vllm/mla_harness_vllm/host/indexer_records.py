"""vLLM's Triton writers and reader of the sparse indexer's cache: do they hold to one format?

They run under Triton's interpreter. ROCm's plain writer and its reader are judged apart: the
reference of the format decodes what one stored, and encodes what the other reads. The fused writer
of DeepSeek V4 is judged through the reader, called in the layout that the release asks for
(vllm-project/vllm#52109).
"""

from __future__ import annotations

import importlib

import torch
from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Observed, PreparedCall, Run
from mla_harness_adapters.host_parts import of_all_rows
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.params import VllmHostParams
from mla_harness_vllm.record_kernels import read_indexer_shuffled, write_indexer_shuffled
from mla_harness_vllm.releases import FLAT_RECORDS, FUSED_WRITER

FORMAT = "indexer_shuffled"
NAME = "vllm-indexer-shuffled"
LAYERS = 2
"""The blocks of two layers lie side by side, as since 0.29."""
WRITING = {"kv": FORMAT, "layers": LAYERS, "num_tokens": 20, "num_padded": 2}
READING = {"kv": FORMAT, "layers": LAYERS, "seq_lens": (1, 0, 65)}
"""Parameters of the ops `write_records` and `read_records`."""
RATIO = 4
"""Tokens that DeepSeek V4 compresses to one key."""
WIDTH = 128
ROPE = 64


def run(poison: Poison, params: VllmHostParams) -> Run:
    """Store keys and read keys, each against the reference, or store keys by the fused writer and
    read them.
    """
    found = Run(poison.pattern)
    if params.writer == "fused":
        found.evidence.append(_fused(poison))
        return found
    call = PreparedCall("write_records", NAME, poison, **WRITING)
    # The interpreter has no arithmetic of bfloat16.
    write_indexer_shuffled(call.args[0].float(), *call.args[1:], **call.kwargs)
    call.show(found)
    call = PreparedCall("read_records", NAME, poison, **READING)
    call.show(found, read_indexer_shuffled(*call.args, **call.kwargs))
    return found


def _fused(poison: Poison) -> Observed:
    cache, block_table, starts = PreparedCall("read_records", NAME, poison, **READING).args
    slots = _slots(block_table, starts, cache.shape[1])
    keys = torch.randn(len(slots), WIDTH, generator=torch.Generator().manual_seed(poison.seed))
    keys = keys / keys.square().mean(dim=1, keepdim=True).sqrt()
    _store_fused(keys, cache, slots)
    is_flat = FLAT_RECORDS.value(
        importlib.import_module("vllm.v1.attention.ops.rocm_aiter_mla_sparse")
    )
    layout = "indexer_planar" if is_flat and is_flat(RATIO) else FORMAT
    out = read_indexer_shuffled(cache, block_table, starts, record_format=layout)
    return of_all_rows(
        "keys that were stored", out, keys.double(), "write_records.indexer", "token"
    )


def _slots(block_table: Tensor, starts: Tensor, page_size: int) -> Tensor:
    """The slot of each token, one request after another: [T] int64.

    block_table [B, M] int32 has the pages of the requests, starts [B + 1] int32 their first tokens.
    """
    lengths = starts.diff().long()
    request = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    position = torch.arange(len(request)) - starts[request]
    pages = block_table[request, position // page_size].long()
    return pages * page_size + position % page_size


def _store_fused(keys: Tensor, cache: Tensor, slots: Tensor) -> None:
    """Give the writer states that it compresses, normalizes and rotates to `keys` [T, 128], rows of
    length 1.
    """
    kernel = FUSED_WRITER.module()._fused_kv_compress_norm_rope_insert_indexer_attn
    tokens = torch.arange(len(keys), dtype=torch.int32)
    # A state is a key and its score. Equal keys with equal scores: the compressed one is the key
    # itself.
    states = torch.cat((keys, torch.zeros_like(keys)), dim=1)[:, None].repeat(1, RATIO, 1)
    arguments = {
        "state_cache_ptr": states,
        "state_cache_stride0": states.stride(0),
        "state_cache_stride1": states.stride(1),
        "token_to_req_indices_ptr": tokens,
        "positions_ptr": torch.full_like(tokens, RATIO - 1),
        "slot_mapping_ptr": tokens,
        "block_table_ptr": tokens[:, None],
        "block_table_stride": 1,
        "block_size": RATIO,
        "rms_norm_weight_ptr": torch.ones(WIDTH),
        "rms_norm_eps": 0.0,
        # Cosines of 1 and sines of 0 turn nothing.
        "cos_sin_cache_ptr": torch.cat(
            (torch.ones(1, ROPE // 2), torch.zeros(1, ROPE // 2)), dim=1
        ),
        "cos_sin_stride": ROPE,
        "k_cache_ptr": cache,
        "kv_slot_mapping_ptr": slots,
        "kv_cache_block_size": cache.shape[1],
        "COMPRESS_RATIO": RATIO,
        "OVERLAP": False,
        "ROPE_HEAD_DIM": ROPE,
        "FP8_MAX": 448.0,
        "SCALE_DIM": 4,
        "MX_SCALE": False,
        "KV_BLOCK_STRIDE": cache.stride(0),
        **dict.fromkeys(
            ("HEAD_SIZE", "TRITON_BLOCK_SIZE", "STATE_WIDTH", "QUANT_BLOCK", "TOKEN_STRIDE"), WIDTH
        ),
    }
    kernel[(len(keys),)](**accepted(arguments, kernel.fn))
