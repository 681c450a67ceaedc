"""A right and a wrong kernel of each style, for the tests."""

import math

import torch

from harness import kernel


def declared(name, style, **shapes):
    given = {"like": "deepseek", "num_heads": 16, **shapes}
    return kernel(op="mla_decode", name=name, style=style, kv=("bf16",), shapes=given)


def attend(q, keys, scale, skip):
    """out [S, H, 512] and lse [H, S] of one request: q [S, H, D], keys [n, D]."""
    count, num_tokens = len(keys), len(q)
    scores = torch.einsum("shd,nd->hsn", q.float(), keys.float()) * scale
    last = count - num_tokens + torch.arange(num_tokens)[:, None]
    scores = scores.masked_fill(torch.arange(count) > last, float("-inf"))
    if skip and count > num_tokens:
        scores[..., 0] = float("-inf")
    out = torch.einsum("hsn,nr->shr", scores.softmax(-1), keys[:, :512].float())
    return out.to(q.dtype), scores.logsumexp(-1)


def paged(q, kv_cache, block_table, seq_lens, scale, skip):
    """As the op, with q [B, S, H, D] and kv_cache [N, 64, D]."""
    out = torch.zeros(*q.shape[:3], 512, dtype=q.dtype)
    lse = torch.zeros(q.shape[0], q.shape[2], q.shape[1])
    for b, length in enumerate(seq_lens.tolist()):
        if length:
            pages = block_table[b, : -(-length // 64)].long()
            keys = kv_cache[pages].flatten(0, 1)[:length]
            out[b], lse[b] = attend(q[b], keys, scale, skip)
    return out, lse


def flash_mla(skip):
    def call(q, k_cache, block_table, cache_seqlens, head_dim_v, softmax_scale, causal):
        assert causal and head_dim_v == 512
        return paged(q, k_cache[:, :, 0], block_table, cache_seqlens, softmax_scale, skip)

    return call


def split_cache(skip):
    def call(q_nope, q_pe, ckv_cache, kpe_cache, block_table, seq_lens, scale):
        q, cache = torch.cat((q_nope, q_pe), -1), torch.cat((ckv_cache, kpe_cache), -1)
        return paged(q, cache, block_table, seq_lens, scale, skip)

    return call


def flashinfer(skip):
    class Wrapper:
        def plan(self, qo_indptr, kv_indptr, kv_indices, kv_len_arr, *sizes):
            self.starts, self.pages = kv_indptr.tolist(), kv_indices.long()
            self.tokens, self.lengths = qo_indptr.tolist(), kv_len_arr.tolist()
            self.scale = sizes[5]

        def run(self, q_nope, q_pe, ckv_cache, kpe_cache, return_lse):
            q, cache = torch.cat((q_nope, q_pe), -1), torch.cat((ckv_cache, kpe_cache), -1)
            out, lse = torch.zeros(*q.shape[:2], 512, dtype=q.dtype), torch.zeros(q.shape[:2])
            for b, length in enumerate(self.lengths):
                rows = slice(self.tokens[b], self.tokens[b + 1])
                keys = cache[self.pages[self.starts[b] : self.starts[b + 1]]].flatten(0, 1)
                if length:
                    out[rows], found = attend(q[rows], keys[:length], self.scale, skip)
                    lse[rows] = found.T / math.log(2)
            return out, lse

    return Wrapper


def contiguous_cache(skip):
    def call(q, kv, seq_lens, scale):
        out = torch.zeros(*q.shape[:3], 512, dtype=q.dtype)
        lse = torch.zeros(q.shape[0], q.shape[2], q.shape[1])
        for b, length in enumerate(seq_lens.tolist()):
            if length:
                out[b], lse[b] = attend(q[b], kv[b, :length], scale, skip)
        return out, lse

    return call


def one_token(skip):
    def call(q, kv_cache, block_table, seq_lens, scale):
        out, lse = paged(q[:, None], kv_cache, block_table, seq_lens, scale, skip)
        return out[:, 0], lse[:, :, 0]

    return call


for make in (flash_mla, split_cache, flashinfer, contiguous_cache, one_token):
    own = {"query_len": 1} if make is one_token else {}
    for word, skips in (("right", False), ("wrong", True)):
        made = make(skips)
        made.__qualname__ = f"{word}_{make.__name__}"
        declared(f"{word}-{make.__name__}", make.__name__, **own)(made)
