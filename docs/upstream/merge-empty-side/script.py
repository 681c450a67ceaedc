# NaN in live rows of out: 128 elements (pattern nan).
#
# Found by mla-harness as
# susceptibility[kernel=merge_attn_states/vllm-cuda,site=context.output,pattern=nan]@num_tokens=1,num_with_context=1,
# empty_prefix_rows=1,num_heads=1,patterns=[nan], made smaller in 3 steps. Seen with torch
# 2.14.0+cu130, triton 3.8.0, vllm 0.33.0, flashinfer 0.7.2.post1, Python 3.12.3, on NVIDIA H100
# 80GB HBM3 (Linux-6.18.44-fc-v657-gpu-x86_64-with-glibc2.39). It ends in an error; without the line
# marked BUG it passes.
import importlib
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NUM_TOKENS, WITH_CONTEXT, HEADS, V_DIM = 1, 1, 1, 128
NUM_EMPTY = 1  # the last tokens with context whose prefix is empty in this chunk
SEED = 1763485127


def poison(memory):
    """Fill memory as uninitialised memory may be: NaN (-1 in integers). It can hold any bits."""
    return memory.fill_(float("nan") if memory.is_floating_point() else -1)


class Poison(TorchDispatchMode):
    """Hands out torch.empty and its like full of poison."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        return poison(out) if "empty" in func.__name__ else out


def plain_merge_attn_states(
    prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None
):
    """Two partial attentions by their lse; tokens at or past the count are copied from the suffix.
    """
    merged = slice(num_tokens_with_context)
    lses = torch.stack((prefix_lse[:, merged], suffix_lse[:, merged]))
    lses = lses.masked_fill(lses.isinf(), float("-inf"))
    weights = lses.softmax(0).transpose(1, 2)[..., None]
    outs = torch.stack((prefix_out[merged], suffix_out[merged])).float()
    outs = outs.masked_fill(weights == 0, 0.0)  # an empty side is not even multiplied by zero
    out, lse = suffix_out.clone(), suffix_lse.clone()
    out[merged] = (outs * weights).sum(0).to(out.dtype)
    lse[:, merged] = lses.logsumexp(0)
    return out, lse


def _merged(module, prefix_out, prefix_lse, suffix_out, suffix_lse, *, count):
    merge: Any = importlib.import_module(module).merge_attn_states
    out, lse = torch.empty_like(prefix_out), torch.empty_like(prefix_lse)
    merge(
        output=out,
        prefix_output=prefix_out,
        prefix_lse=prefix_lse,
        suffix_output=suffix_out,
        suffix_lse=suffix_lse,
        output_lse=lse,
        prefill_tokens_with_context=count,
    )
    return out, lse


def merge_attn_states(*states, num_tokens_with_context=None):
    """The CUDA kernel of vllm._custom_ops: prefix out [T, H, V], prefix lse [H, T] float32, suffix
    out, suffix lse.
    """
    return _merged("vllm._custom_ops", *states, count=num_tokens_with_context)


kernel = plain_merge_attn_states
kernel = merge_attn_states  # BUG: remove this line and it passes


def check():
    generator = torch.Generator().manual_seed(SEED)
    prefix_out = torch.randn(NUM_TOKENS, HEADS, V_DIM, generator=generator).bfloat16()
    prefix_lse = torch.randn(HEADS, NUM_TOKENS, generator=generator) * 2
    suffix_out = torch.randn(NUM_TOKENS, HEADS, V_DIM, generator=generator).bfloat16()
    suffix_lse = torch.randn(HEADS, NUM_TOKENS, generator=generator) * 2
    written = WITH_CONTEXT - NUM_EMPTY
    prefix_lse[:, written:WITH_CONTEXT] = float("-inf")
    lses = torch.stack((prefix_lse, suffix_lse))[..., :written].double()
    outs = torch.stack((prefix_out, suffix_out))[:, :written].double()
    expected = suffix_out.double()
    expected[:written] = (lses.softmax(0).transpose(1, 2)[..., None] * outs).sum(0)
    poison(
        prefix_out[written:]
    )  # context.output: attention over the context writes only rows that have keys in it

    inputs = (prefix_out, prefix_lse, suffix_out, suffix_lse)
    with torch.device("cuda"), Poison():
        out, _ = kernel(*(x.cuda() for x in inputs), num_tokens_with_context=WITH_CONTEXT)
    torch.testing.assert_close(out.cpu().double(), expected, rtol=2e-2, atol=2e-2)


if __name__ == "__main__":
    check()
    print("passes")
