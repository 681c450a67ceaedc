"""A right and a wrong kernel of each style, for the tests."""

import math

import torch

from harness import kernel


def declared(name, style, gives_lse=True, **shapes):
    return kernel(
        op="mla_decode",
        name=name,
        style=style,
        kv=("bf16",),
        shapes={"like": "deepseek", "num_heads": 16, **shapes},
        gives_lse=gives_lse,
    )


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


def vllm_decode(skip):
    def call(q, keys, values, o, lse, table, lens, partial, splits, scale, page_size):
        assert page_size == 64 and partial.shape[2] == splits
        out, found = paged(q[:, None], keys[:, :, 0], table, lens, scale, skip)
        o.copy_(out[:, 0])
        lse.copy_(found[:, :, 0])

    return call


def by_slots(q, keys, starts, slots, scale, skip, causal_rows=None):
    """One row a request, or `causal_rows` starts of its rows: q [T, H, D], keys [n, D]."""
    out, lse = torch.zeros(*q.shape[:2], 512, dtype=q.dtype), torch.zeros(q.shape[:2])
    rows = list(range(len(starts))) if causal_rows is None else causal_rows.tolist()
    for b in range(len(starts) - 1):
        own = slots[starts[b] : starts[b + 1]].long()
        if len(own):
            mine = slice(rows[b], rows[b + 1])
            out[mine], found = attend(q[mine], keys[own], scale, skip)
            lse[mine] = found.T
    return out, lse


def sglang_decode(skip):
    def call(q, keys, values, o, starts, slots, partial, partial_lse, splits, most, scale):
        assert partial.shape[2] == most and splits.tolist() == [most] * len(q)
        o.copy_(by_slots(q, keys[:, 0], starts.tolist(), slots, scale, skip)[0])

    return call


def trace(skip):
    def call(q_nope, q_pe, ckv_cache, kpe_cache, *indices):
        *rows, starts, pages, scale = indices
        q, cache = torch.cat((q_nope, q_pe), -1), torch.cat((ckv_cache, kpe_cache), -1)
        page_size = cache.shape[1]
        slots = (pages[:, None] * page_size + torch.arange(page_size)).flatten()
        starts = (starts * page_size).tolist()
        found = by_slots(q, cache.flatten(0, 1), starts, slots, scale, skip, *rows)
        return found[0], found[1] / math.log(2)

    return call


def varlen(skip):
    def call(q, k, v, starts_q, starts_k, most_q, most_k, softmax_scale, causal):
        out, lse = (
            torch.empty(*q.shape[:2], v.shape[-1], dtype=q.dtype),
            torch.empty(q.shape[1::-1]),
        )
        rows, keys = starts_q.tolist(), starts_k.tolist()
        for b in range(len(rows) - 1):
            mine, own = slice(rows[b], rows[b + 1]), slice(keys[b] + skip, keys[b + 1])
            if own.stop > own.start:
                scores = torch.einsum("shd,nhd->hsn", q[mine].float(), k[own].float())
                scores = scores * softmax_scale
                lse[:, mine] = scores.logsumexp(-1)
                found = torch.einsum("hsn,nhv->shv", scores.softmax(-1), v[own].float())
                out[mine] = found.to(out.dtype)
        assert not causal and most_q >= 1 and most_k >= 1
        return out, lse

    return call


DECODES = {
    "flash_mla": flash_mla,
    "split_cache": split_cache,
    "flashinfer": flashinfer,
    "contiguous_cache": contiguous_cache,
    "one_token": one_token,
    "vllm_decode": vllm_decode,
    "sglang_decode": sglang_decode,
    "trace_decode_ps1": trace,
    "trace_decode_ps64": trace,
    "trace_prefill_ps1": trace,
    "trace_prefill_ps64": trace,
}
ONE_QUERY = ("one_token", "trace_decode_ps1", "trace_decode_ps64")
for style, make in DECODES.items():
    own = {"query_len": 1} if style in ONE_QUERY else {}
    for word, skips in (("right", False), ("wrong", True)):
        made = make(skips)
        made.__qualname__ = f"{word}_{style}"
        declared(f"{word}-{style}", style, style != "sglang_decode", **own)(made)

for word, skips in (("right", False), ("wrong", True)):
    made = varlen(skips)
    made.__qualname__ = f"{word}_varlen"
    kernel(op="context_attention", name=f"{word}-varlen", style="varlen")(made)
