import torch

import vllm
from harness.ops.parts.record_formats import stored
from harness.ops.write_records.kernels.dense import write_records


def indexer_k_quant_and_cache_triton(k, kv_cache, slot_mapping, quant_block_size, scale_fmt):
    name = "indexer_planar" if "plain-is-flat" in vllm.BUGS else "indexer_shuffled"
    write_records(k, kv_cache, slot_mapping, record_format=name)


def cp_gather_indexer_k_quant_cache_triton(
    k_cache, k_fp8, k_fp8_scale, block_table, cu_seqlen, token_to_seq
):
    position = torch.arange(len(k_fp8)) - cu_seqlen[token_to_seq]
    page = k_cache.shape[1]
    slots = block_table[token_to_seq, position // page].long() * page + position % page
    records = stored(k_cache, slots, "indexer_shuffled")
    k_fp8.view(torch.uint8).copy_(records[:, :128])
    k_fp8_scale.copy_(records[:, 128:])
