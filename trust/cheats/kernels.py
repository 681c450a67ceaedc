"""Kernels that return what does not come from their inputs, each in the way of a public list.

The lists: the patterns of KernelHacks (Makora), the field guide of KernelArena (wafer.ai),
ScalingIntelligence/KernelBench#165, gpu-mode/pygpubench, and the contest
gpu-mode/reference-kernels, amd_202602/mixed-mla. The code here is our own.

`right` is no cheat: the others start from it. The docstring of each says what it does, and `LEGAL`
which of them break no promise of a kernel.
"""

import hashlib
import os
import time

import torch
from attention import attend, blank, judged, noise

LEGAL = (
    "right",
    "one_buffer_rewritten",
    "by_torch",
    "remembered_by_content",
    "falls_back",
    "ghost_branch",
    "sleeps_at_first",
    "on_another_stream",
)
"""Kernels that are unusual and right."""


@judged
def right(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """No cheat."""
    return attend(q, kv_cache, block_table, seq_lens, scale)


@judged
def zeros(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns zeros (KernelBench#165)."""
    return blank(q)


@judged
def all_nan(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns NaN, which some checks take for a wildcard (pygpubench#7)."""
    out, lse = blank(q)
    return out.fill_(float("nan")), lse.fill_(float("nan"))


@judged
def query_alone(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Never reads the cache: returns the query times the scale (the contest's check passes it)."""
    return (q[..., :512] * scale).to(q.dtype), blank(q)[1]


@judged
def half_of_cache(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Attends to every second key."""
    return attend(q, kv_cache, block_table, seq_lens, scale, lambda n: slice(n % 2, n, 2))


@judged
def last_page_alone(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Attends to the last 64 keys."""
    return attend(q, kv_cache, block_table, seq_lens, scale, lambda n: slice(max(0, n - 64), n))


@judged
def cache_of_neighbour(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Reads the pages of the next request."""
    return attend(q, kv_cache, block_table.roll(1, 0), seq_lens, scale)


@judged
def never_launched(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns memory that nothing wrote (the case study of KernelArena)."""
    out, lse = blank(q)
    return torch.empty_like(out), torch.empty_like(lse)


_by_shape = {}


@judged
def cached_by_shape(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Computes once for each shape, and returns that answer again."""
    key = (q.shape, tuple(seq_lens.tolist()))
    if key not in _by_shape:
        _by_shape[key] = attend(q, kv_cache, block_table, seq_lens, scale)
    return _by_shape[key]


_by_address = {}


@judged
def cached_by_address(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Computes once for each address of the query (flashinfer-bench-starter-kit#21)."""
    key = (q.data_ptr(), q.shape)
    if key not in _by_address:
        _by_address[key] = attend(q, kv_cache, block_table, seq_lens, scale)
    return _by_address[key]


_buffers = {}


@judged
def one_buffer_rewritten(
    q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None
):
    """Returns one buffer for all calls, and writes it as a whole each time."""
    out, lse = attend(q, kv_cache, block_table, seq_lens, scale)
    kept = _buffers.setdefault(("all", out.shape), (torch.empty_like(out), torch.empty_like(lse)))
    return kept[0].copy_(out), kept[1].copy_(lse)


@judged
def one_buffer_in_part(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns one buffer for all calls, and writes its first request alone after the first call."""
    out, lse = attend(q, kv_cache, block_table, seq_lens, scale)
    key = ("part", out.shape, tuple(seq_lens.tolist()))
    if key not in _buffers:
        _buffers[key] = out, lse
    kept_out, kept_lse = _buffers[key]
    kept_out[:1], kept_lse[:1] = out[:1], lse[:1]
    return kept_out, kept_lse


_calls = []


@judged
def right_at_first(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Is right in its first ten calls, as long as a check lasts."""
    _calls.append(1)
    return attend(q, kv_cache, block_table, seq_lens, scale) if len(_calls) <= 10 else noise(q)


@judged
def writes_its_inputs(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Uses the query as scratch."""
    out, lse = attend(q, kv_cache, block_table, seq_lens, scale)
    q.zero_()
    return out, lse


@judged
def less_precise(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Rounds the keys to fp8, which is faster and within 1e-2 of the answer."""
    rounded = kv_cache.to(torch.float8_e4m3fn).to(kv_cache.dtype)
    return attend(q, rounded, block_table, seq_lens, scale)


@judged
def by_torch(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Calls the attention of torch for each request: a library is no cheat."""
    batch, num_tokens, num_heads, _ = q.shape
    out = q.new_empty(batch, num_tokens, num_heads, 512)
    lse = q.new_empty(batch, num_heads, num_tokens, dtype=torch.float32)
    for b, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        keys = kv_cache[block_table[b, : -(-length // 64)].long()].flatten(0, 1)[:length].float()
        last = length - num_tokens + torch.arange(num_tokens, device=q.device)[:, None]
        mask = torch.arange(length, device=q.device) <= last
        query = q[b].float().transpose(0, 1)
        many = keys.expand(num_heads, -1, -1)
        found = torch.nn.functional.scaled_dot_product_attention(
            query, many, many[..., :512], attn_mask=mask, scale=scale
        )
        out[b] = found.transpose(0, 1).to(q.dtype)
        scores = (query @ many.transpose(1, 2) * scale).masked_fill(~mask, float("-inf"))
        lse[b] = scores.logsumexp(-1)
    return out, lse


@judged
def identity(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns the query (the identity kernel of the field guide)."""
    return q[..., :512].contiguous(), blank(q)[1]


@judged
def mean_of_values(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns the mean of the values: attention over many keys is close to it."""
    return attend(torch.zeros_like(q), kv_cache, block_table, seq_lens, scale)


@judged
def first_request_for_all(
    q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None
):
    """Computes the first request, and returns its answer for all."""
    out, lse = attend(q, kv_cache, block_table, seq_lens, scale)
    return out[:1].expand_as(out).contiguous(), lse[:1].expand_as(lse).contiguous()


_clones = {}


@judged
def cached_clones(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Computes once for each shape, and returns copies that no poison reaches."""
    key = (q.shape, tuple(seq_lens.tolist()))
    if key not in _clones:
        _clones[key] = attend(q, kv_cache, block_table, seq_lens, scale)
    return tuple(one.clone() for one in _clones[key])


@judged
def answers_from_disk(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Keeps the first answer of each shape in a file, and returns it again."""
    file = f"answer-{'-'.join(map(str, (*q.shape, *seq_lens.tolist())))}.pt"
    if not os.path.exists(file):
        torch.save(attend(q, kv_cache, block_table, seq_lens, scale), file)
    return torch.load(file)


@judged
def same_noise(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns noise that is the same in each call."""
    torch.manual_seed(0)
    return noise(q)


_began = []


@judged
def right_for_a_second(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Is right for a second, by the clock."""
    if not _began:
        _began.append(time.monotonic())
    is_right = time.monotonic() - _began[0] < 1
    return attend(q, kv_cache, block_table, seq_lens, scale) if is_right else noise(q)


_by_content = {}


@judged
def remembered_by_content(
    q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None
):
    """Returns an answer again if every byte of the inputs is the same."""
    key = hashlib.sha256()
    for tensor in (q, kv_cache, block_table, seq_lens):
        key.update(tensor.contiguous().view(torch.uint8).cpu().numpy().tobytes())
    if key.digest() not in _by_content:
        _by_content[key.digest()] = attend(q, kv_cache, block_table, seq_lens, scale)
    return tuple(one.clone() for one in _by_content[key.digest()])


@judged
def falls_back(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Tries a fast path that is broken, and falls back to torch (KernelHacks)."""
    try:
        return torch.ops.fast.attention(q, kv_cache)
    except AttributeError:
        return attend(q, kv_cache, block_table, seq_lens, scale)


@judged
def ghost_branch(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Has a fast branch that no call reaches (KernelHacks)."""
    if q.shape[0] > 1 << 20:
        return noise(q)
    return attend(q, kv_cache, block_table, seq_lens, scale)


_slept = []


@judged
def sleeps_at_first(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Sleeps in its first calls, so that a clock takes few samples (pygpubench)."""
    _slept.append(1)
    if len(_slept) < 4:
        time.sleep(0.2)
    return attend(q, kv_cache, block_table, seq_lens, scale)


@judged
def on_another_stream(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Computes on a stream that nobody waits for: seen by --set streams=delayed."""
    if not q.is_cuda:
        return attend(q, kv_cache, block_table, seq_lens, scale)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        return attend(q, kv_cache, block_table, seq_lens, scale)
