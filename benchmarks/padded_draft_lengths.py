"""Keys that vLLM gives a padded row of a batch with drafts: python
benchmarks/padded_draft_lengths.py

Needs vLLM alone, on a CPU. Up to 0.27.1 it prints -1 for the first token of the padded row, which
DeepGEMM reads as 4294967295; from 0.28.0 on 0. Exit code 1 with a negative length.
"""

import torch
from vllm.v1.attention.backends.mla.indexer import DeepseekV32IndexerMetadataBuilder

builder = object.__new__(DeepseekV32IndexerMetadataBuilder)
builder.vllm_config = type("Config", (), {"speculative_config": None})
builder.offsets_buffer = torch.arange(2, dtype=torch.int32)
builder.decode_seq_lens_buffer = torch.zeros(8, dtype=torch.int32)
lengths = torch.tensor(
    [9, 5, 0], dtype=torch.int32
)  # two requests with a draft each, and a row of padding
new = torch.tensor([2, 2, 0], dtype=torch.int32)
keys, *_ = builder._prepare_decode_tensors(
    seq_lens=lengths,
    block_table=torch.zeros(3, 1, dtype=torch.int32),
    decode_lens=new,
    decode_lens_cpu=new,
    query_start_loc=torch.tensor([0, 2, 4], dtype=torch.int32),
    num_decodes=3,
    num_decode_tokens=4,
    use_native=True,
    next_n=2,
    max_decode_len=2,
)
print(keys.tolist())
raise SystemExit(int(bool((keys < 0).any())))
