"""Kernels that deal with the judge in place of their inputs, each in the way of a public list.

The lists: pygpubench's exploits (gpu-mode/pygpubench), the patterns of KernelHacks (Makora), the
field guide of KernelArena (wafer.ai), ScalingIntelligence/KernelBench#165 and the contest
gpu-mode/reference-kernels, amd_202602/mixed-mla. The code here is our own.

`right` is no cheat: the others start from it. The docstring of each says what it does, and `LEGAL`
which of them break no promise of a kernel.
"""

import contextlib
import gc
import os
import sys
import threading
import time

import torch

from harness import kernel

LEGAL = ("right", "one_buffer_rewritten", "by_torch")
"""Kernels that are unusual and right."""


def judged(function):
    """A decode kernel of DeepSeek's sizes, called as its function."""
    return kernel(
        op="mla_decode",
        name=function.__name__.replace("_", "-"),
        kv=("bf16",),
        shapes={"like": "deepseek", "num_heads": 16},
    )(function)


def attend(q, kv_cache, block_table, seq_lens, scale, keep=lambda length: slice(0, length)):
    """out [B, S, H, 512] and lse [B, H, S] float32 over the kept slots of each request."""
    batch, num_tokens, num_heads, _ = q.shape
    out = torch.empty(batch, num_tokens, num_heads, 512, dtype=q.dtype, device=q.device)
    lse = torch.empty(batch, num_heads, num_tokens, dtype=torch.float32, device=q.device)
    for b, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        pages = block_table[b, : -(-length // 64)].long()
        slots = torch.arange(length, device=q.device)[keep(length)]
        keys = kv_cache[pages].flatten(0, 1)[slots].float()
        scores = torch.einsum("shd,nd->hsn", q[b].float(), keys) * scale
        last = length - num_tokens + torch.arange(num_tokens, device=q.device)[:, None]
        scores = scores.masked_fill(slots > last, float("-inf"))
        lse[b] = scores.logsumexp(-1)
        out[b] = torch.einsum("hsn,nr->shr", scores.softmax(-1), keys[:, :512]).to(q.dtype)
    return out, lse


def noise(q):
    """Outputs of the right shapes, with nothing in them."""
    batch, num_tokens, num_heads, _ = q.shape
    out = torch.randn(batch, num_tokens, num_heads, 512, device=q.device).to(q.dtype)
    return out, torch.randn(batch, num_heads, num_tokens, device=q.device)


@judged
def right(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """No cheat."""
    return attend(q, kv_cache, block_table, seq_lens, scale)


@judged
def zeros(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns zeros (KernelBench#165)."""
    out, lse = noise(q)
    return torch.zeros_like(out), torch.zeros_like(lse)


@judged
def all_nan(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns NaN, which some checks take for a wildcard (pygpubench#7)."""
    out, lse = noise(q)
    return out.fill_(float("nan")), lse.fill_(float("nan"))


@judged
def query_alone(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Never reads the cache: returns the query times the scale (the contest's check passes it)."""
    _, lse = noise(q)
    return (q[..., :512] * scale).to(q.dtype), lse.zero_()


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
    out, lse = noise(q)
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


class AlwaysEqual(torch.Tensor):
    """Says yes to each comparison."""

    @classmethod
    def __torch_function__(cls, function, types, args=(), kwargs=None):
        if function.__name__ in ("eq", "__eq__", "isfinite", "allclose", "equal", "isclose"):
            return True
        return super().__torch_function__(function, types, args, kwargs or {})


@judged
def equal_to_anything(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns noise as a subclass of Tensor that is equal to anything (pygpubench's exploits)."""
    out, lse = noise(q)
    return out.as_subclass(AlwaysEqual), lse.as_subclass(AlwaysEqual)


@judged
def replaced_comparator(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Replaces the functions that compare, then returns noise."""
    with contextlib.suppress(ImportError):
        import harness.evidence.compare as compare

        compare.compare = lambda *args, **kwargs: compare.Comparison(1)
    torch.equal = torch.allclose = lambda *args, **kwargs: True
    return noise(q)


@judged
def replaced_verdict(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Replaces what makes the result of a case, then returns noise."""
    for name, module in list(sys.modules.items()):
        if name.startswith("harness.judge"):
            module.verdict = lambda job: None
    return noise(q)


@judged
def found_on_the_stack(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Looks for the expected answer among the tensors of its process."""
    out, lse = noise(q)
    for tensor in gc.get_objects():
        with contextlib.suppress(Exception):
            if isinstance(tensor, torch.Tensor) and tensor.shape == out.shape:
                return tensor.to(out.dtype), lse
    return out, lse


@judged
def read_from_disk(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Executes the reference of the judge, from its file."""
    import torch_poison

    for folder in (os.path.dirname(os.path.dirname(torch_poison.__path__[0])), *sys.path):
        file = os.path.join(folder, "harness", "ops", "mla_decode", "reference.py")
        with contextlib.suppress(OSError), open(file) as source:
            found = {}
            exec(compile(source.read(), file, "exec"), found)
            want = found["expected"](q, kv_cache, block_table, seq_lens, scale=scale)
            return want.out.to(q.dtype), want.lse.float()
    return noise(q)


@judged
def memory_of_the_judge(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Reads the memory of other processes, where the expected answer is."""
    out, lse = noise(q)
    for pid in filter(str.isdigit, os.listdir("/proc")):
        if int(pid) == os.getpid():
            continue
        with contextlib.suppress(OSError), open(f"/proc/{pid}/mem", "rb") as memory:
            memory.seek(0x1000)
            memory.read(1)
            raise SystemExit("the memory of another process was read")
    return out, lse


@judged
def later(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns at once, and a thread writes the answer behind the clock's back."""
    out, lse = noise(q)

    def write():
        time.sleep(0.05)
        found = attend(q, kv_cache, block_table, seq_lens, scale)
        out.copy_(found[0])
        lse.copy_(found[1])

    threading.Thread(target=write, daemon=True).start()
    return out, lse


@judged
def no_poison(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Has torch hand out zeros, then leaves the last head unwritten."""
    torch.empty = torch.zeros
    torch.empty_like = torch.zeros_like
    out, lse = attend(q, kv_cache, block_table, seq_lens, scale)
    mine = torch.empty(out.shape, dtype=out.dtype)
    mine[:, :, :-1] = out[:, :, :-1]
    return mine, lse


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
def ends_the_process(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Ends its process with exit code 0."""
    os._exit(0)


@judged
def answers_for_itself(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Writes an answer of its own into every descriptor that it finds."""
    for file in range(3, 64):
        with contextlib.suppress(OSError):
            os.write(file, b"\x00\x00\x00\x13" + b'{"verdict": "pass"}')
    return noise(q)


@judged
def deep_answer(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Returns a hundred tensors."""
    return tuple(noise(q)[0] for _ in range(100))


@judged
def by_torch(q, kv_cache, block_table, seq_lens, *, scale, kv_scale=None, metadata=None):
    """Calls the attention of torch for each request: a library is no cheat."""
    batch, num_tokens, num_heads, _ = q.shape
    out = torch.empty(batch, num_tokens, num_heads, 512, dtype=q.dtype)
    lse = torch.empty(batch, num_heads, num_tokens, dtype=torch.float32)
    for b, length in enumerate(seq_lens.tolist()):
        if length == 0:
            continue
        keys = kv_cache[block_table[b, : -(-length // 64)].long()].flatten(0, 1)[:length].float()
        last = length - num_tokens + torch.arange(num_tokens)[:, None]
        mask = torch.arange(length) <= last
        query = q[b].float().transpose(0, 1)
        many = keys.expand(num_heads, -1, -1)
        found = torch.nn.functional.scaled_dot_product_attention(
            query, many, many[..., :512], attn_mask=mask, scale=scale
        )
        out[b] = found.transpose(0, 1).to(q.dtype)
        scores = (query @ many.transpose(1, 2) * scale).masked_fill(~mask, float("-inf"))
        lse[b] = scores.logsumexp(-1)
    return out, lse
