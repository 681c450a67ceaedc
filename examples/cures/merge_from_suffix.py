"""The cure of vllm-project/vllm#36540: what nobody wrote of the prefix is not read, whatever the merge does with it."""

import torch

from harness import cure


@cure(op="merge_attn_states")
def take_suffix(wrapped, prefix_out, prefix_lse, suffix_out, suffix_lse, *, num_tokens_with_context=None):
    """Prefix and suffix out [T, H, V], lse [H, T]: rows at and past the count are empty, and empty rows hold 0."""
    prefix_lse = prefix_lse.clone()
    if num_tokens_with_context is not None:
        prefix_lse[:, num_tokens_with_context:] = -torch.inf
    empty = torch.isinf(prefix_lse).T[..., None]
    written = torch.where(empty, torch.zeros_like(prefix_out), prefix_out)
    return wrapped(written, prefix_lse, suffix_out, suffix_lse, num_tokens_with_context=num_tokens_with_context)
