"""Attention layers on paged memory: MLA with full attention or a window.

An MLA layer decodes in the absorbed form. It prefills by suffix, context chunks and merges, or over
the pages still in the window.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.engine.batch import Batch, DecodeInputs, PrefillRequest
from harness.engine.kernels import ActivationQuantizer, Kernels
from harness.engine.memory import PagedMemory
from harness.engine.model.mla import MLAAttention
from harness.engine.schedule.config import PAGE_SIZE
from harness.memory.bounds import check_indices
from harness.memory.graph.launch import launch


@seam("rope.heads-taken-for-tokens")
def query_and_latents(
    attention: MLAAttention, x: Tensor, positions: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """x [T, hidden], positions [T] int64 -> q_nope, q_pe [T, H, ...], kv_c [T, R], k_pe [T, E]."""
    return *attention.project_q(x, positions), *attention.project_kv(x, positions)


@dataclass(slots=True, eq=False)
class PagedMLA:
    """One MLA layer with full attention.

    T tokens, H heads, R latent rank, E rope dim, D = R + E, V value dim.
    """

    attention: MLAAttention
    layer: int
    kernels: Kernels
    quantize: ActivationQuantizer
    context_chunk: int
    num_ranks: int = 1

    def __call__(self, x: Tensor, batch: Batch, memory: PagedMemory) -> Tensor:
        """x: [T, hidden] -> [T, hidden].

        Stores the new latents, then attends. Padded rows are undefined.
        """
        attention = self.attention
        cache = memory.latents(self.layer)
        kv_scale = memory.layout.scale_of(self.layer)
        q_nope, q_pe, kv_c, k_pe = query_and_latents(attention, x, batch.positions)
        # Stored before attention: the decode reads the new tokens from the pages, as any other key.
        self.kernels.write_kv(
            kv_c, k_pe, cache, self._slots(batch), kv_scale=scale_to_store(batch, kv_scale)
        )
        parts = []
        if batch.decode is not None:
            n = batch.num_decode_tokens
            slots = None if batch.adapters is None else batch.adapters[:n]
            # Decodes are the first rows of a batch, and the two attentions have different kernels.
            parts.append(self._decode(q_nope[:n], q_pe[:n], memory, batch.decode, slots))
        if batch.prefill:
            q = torch.cat((q_nope, q_pe), dim=-1)
            parts.append(self._prefill(q, kv_c, k_pe, memory, batch.prefill))
        values = torch.cat(parts) if len(parts) > 1 else parts[0]
        out: Tensor = attention.o_proj(self.quantize(values.flatten(1), batch))
        return out

    def _slots(self, batch: Batch) -> Tensor:
        """The slot [T] of each token in this layer's cache."""
        return slots_to_store(batch)

    def _table(self, inputs: DecodeInputs) -> tuple[Tensor, dict[str, Any]]:
        """The block table [B, M] of this layer, and further options of the decode kernel."""
        return inputs.block_table, {}

    def _decode(
        self,
        q_nope: Tensor,
        q_pe: Tensor,
        memory: PagedMemory,
        inputs: DecodeInputs,
        slots: Tensor | None,
    ) -> Tensor:
        """q_nope [B * S, H, nope], q_pe [B * S, H, E] -> [B * S, H, V]: attention over the
        latents.
        """
        attention = self.attention
        block_table, options = self._table(inputs)
        workspace = self.kernels.workspace
        parts = (attention.absorb_q(q_nope, slots), q_pe)
        if workspace is None:
            q = torch.cat(parts, dim=-1)
        else:
            q = workspace.query(*parts)
            options = options | {"workspace": workspace.counters(inputs.seq_lens.shape[0])}
        q = q.view(-1, inputs.query_len, *q.shape[1:])
        # The first layer plans for all: lengths are the same in each, and a captured forward plans
        # once in a replay.
        if inputs.metadata.plan is None:
            inputs.metadata.plan = plan_of(self.kernels, inputs.seq_lens, attention.num_heads)
        options = options | {
            "kv_scale": memory.layout.scale_of(self.layer),
            "metadata": inputs.metadata.plan,
        }
        cache = memory.latents(self.layer)
        # The decode sees the whole context, so nothing is merged with it and its lse is not read.
        out, _ = self.kernels.mla_decode(
            q, cache, block_table, inputs.seq_lens, scale=attention.softmax_scale, **options
        )
        if inputs.output is not None:
            out = store_live_rows(out, inputs.seq_lens, inputs.output)
        return attention.expand_v(out.flatten(0, 1), slots)

    def _prefill(
        self,
        q: Tensor,
        kv_c: Tensor,
        k_pe: Tensor,
        memory: PagedMemory,
        requests: tuple[PrefillRequest, ...],
    ) -> Tensor:
        """q [T, H, Dq], kv_c [T, R], k_pe [T, E] of a whole batch -> [T', H, V] of the prompts at
        its end.

        Chunks of context are merged one by one. The first merge gets the number of tokens with
        context. In later merges a row without context left has an lse of -inf and an unwritten
        output (vllm-project/vllm#36540, vllm-project/vllm#49294). A kernel may promise no lse for
        such rows: then each merge gets the number, and other rows without keys are marked here.
        """
        attention = self.attention
        cache = memory.latents(self.layer)
        kv_scale = memory.layout.scale_of(self.layer)
        rank = attention.kv_lora_rank
        first = requests[0].start
        spans = [(request.start - first, request.end - first) for request in requests]
        q, kv_c, k_pe = rows_of_prompts(q, kv_c, k_pe, first)
        k, v = attention.expand_kv(kv_c, k_pe, slots_of_prompts(requests, spans, q.device))
        # New tokens first; chunks of context are then merged in front of them, so memory for one
        # chunk is enough.
        out, lse = causal_attention(q, k, v, spans, attention.softmax_scale)
        query_start_loc = torch.tensor(
            [0, *(end for _, end in spans)], dtype=torch.int32, device=q.device
        )
        with_context: int | None = tokens_with_context(requests)
        marks_empty_rows = self.kernels.context_attention.spec.empty_lse != "undefined"
        chunks = context_chunks(requests, self.context_chunk)
        for part in (part for chunk in chunks for part in split_among_ranks(chunk, self.num_ranks)):
            # A rank without a token of this chunk still joins the merge, as a collective needs it.
            if any(part):
                latents, chunk_start_loc = gather_context(cache, requests, part, kv_scale)
                slots = slots_of_prompts(requests, [(0, len(span)) for span in part], q.device)
                k, v = attention.expand_kv(
                    latents[:, :rank].to(q.dtype), latents[:, rank:].to(q.dtype), slots
                )
                chunk_out, chunk_lse = self.kernels.context_attention(
                    q, k, v, query_start_loc, chunk_start_loc, scale=attention.softmax_scale
                )
                if not marks_empty_rows:
                    chunk_lse = with_empty_rows_marked(chunk_lse, requests, spans, part)
            else:
                chunk_out, chunk_lse = rank_without_kv(out, lse)
            out, lse = self.kernels.merge_attn_states(
                chunk_out, chunk_lse, out, lse, num_tokens_with_context=with_context
            )
            # Later merges go by the lse of rows without keys alone, where the kernel promises one.
            if marks_empty_rows:
                with_context = None
        return out


@seam("graph.slots-of-capture")
def slots_to_store(batch: Batch) -> Tensor:
    """The slots [T] int64 of a step, read on the device in each replay, however many query tokens a
    request has (NVIDIA/TensorRT-LLM#17110).
    """
    return batch.stored_slots


@seam("scale.prompts-alone")
def scale_to_store(batch: Batch, scale: float | None) -> float | None:
    """The scale of the cache that latents are stored with: in decodes the same as in prompts
    (NVIDIA/TensorRT-LLM#16916).
    """
    return scale


@seam("plan.kept-by-batch-size", "plan.kept-by-longest")
def plan_of(kernels: Kernels, seq_lens: Tensor, num_heads: int) -> Any:
    """The plan of a decode batch with seq_lens [B] int32, made for these lengths.

    One that is kept for a later step must be found by all that it was made of: not by the number of
    requests (flashinfer-ai/flashinfer#4014), nor by a shape (NVIDIA/TensorRT-LLM#13696).
    """
    return kernels.mla_decode_plan(seq_lens, num_heads=num_heads, **kernels.plan_options)


def slots_of_prompts(
    requests: tuple[PrefillRequest, ...], spans: list[tuple[int, int]], device: torch.device
) -> Tensor | None:
    """The adapter's slot of each token of the requests' `spans`, one after another; None if no
    request has one.
    """
    if not any(request.adapter for request in requests):
        return None
    pairs = zip(requests, spans, strict=True)
    return torch.tensor(
        [request.adapter for request, (start, end) in pairs for _ in range(start, end)],
        device=device,
    )


def tokens_with_context(requests: tuple[PrefillRequest, ...]) -> int:
    """The number of prompt tokens in front of the first prompt without context.

    The batch has prompts with context first, see :func:`harness.engine.batch.prompts_in_order`.
    """
    num_with_context = sum(request.context_len > 0 for request in requests)
    return requests[num_with_context - 1].end - requests[0].start if num_with_context else 0


def with_empty_rows_marked(
    lse: Tensor,
    requests: tuple[PrefillRequest, ...],
    spans: list[tuple[int, int]],
    part: list[range],
) -> Tensor:
    """lse [H, T] float32 of one part of a chunk, with -inf in the rows of prompts whose context has
    no token in it: a kernel whose `empty_lse` is undefined may have left anything there.

    `spans` are the rows of each request. Rows of prompts without any context stay as they are, as
    the merge gets their number.
    """
    empty = [
        row
        for request, span, held in zip(requests, spans, part, strict=True)
        if request.context_len and not held
        for row in range(*span)
    ]
    return lse.index_fill(1, torch.tensor(empty, dtype=torch.int64, device=lse.device), -torch.inf)


@seam("batch.decode-prefill-border")
def rows_of_prompts(
    q: Tensor, kv_c: Tensor, k_pe: Tensor, first: int
) -> tuple[Tensor, Tensor, Tensor]:
    """The prompts' rows of a mixed batch, behind the decodes: those from row `first` on
    (vllm-project/vllm#14253).

    q [T, H, nope + E], kv_c [T, R] and k_pe [T, E] float32 in the reference engine, each cut at the
    same row.
    """
    return q[first:], kv_c[first:], k_pe[first:]


def store_live_rows(out: Tensor, seq_lens: Tensor, output: Tensor) -> Tensor:
    """Copy out [B, S, H, R] into the persistent buffer output [B, S, H, R] float32, with zeros in
    padded rows (vllm-project/vllm#37442).

    seq_lens [B] int32 is 0 for padding. A graph's consumers read all rows of the buffer.
    """
    live = (seq_lens > 0).view(-1, 1, 1, 1)
    return output.copy_(torch.where(live, out, torch.zeros_like(out)))


def causal_attention(
    q: Tensor, k: Tensor, v: Tensor, spans: list[tuple[int, int]], scale: float
) -> tuple[Tensor, Tensor]:
    """Attention of new tokens to each other: q, k [T, H, Dq], v [T, H, V] -> out [T, H, V], lse [H,
    T] float32.

    `spans` are the rows of each request.
    """
    # A loop of small launches is slow on a GPU; on a CPU padding is computed in vain.
    if q.is_cuda and len(spans) > 1:
        return padded_causal_attention(q, k, v, spans, scale)
    outs = []
    lses = []
    for start, end in spans:
        scores = torch.einsum("qhd,khd->hqk", q[start:end], k[start:end]) * scale
        future = torch.ones(end - start, end - start, dtype=torch.bool, device=q.device).triu(1)
        scores = scores.masked_fill(future, -torch.inf)
        lses.append(scores.logsumexp(-1))
        outs.append(torch.einsum("hqk,khv->qhv", scores.softmax(-1), v[start:end]))
    return torch.cat(outs), torch.cat(lses, dim=1)


def padded_causal_attention(
    q: Tensor, k: Tensor, v: Tensor, spans: list[tuple[int, int]], scale: float
) -> tuple[Tensor, Tensor]:
    """As `causal_attention`, with all requests padded to the longest: launches cost a GPU more.

    q [T, H, E'], k [T, H, E'] and v [T, H, V] float32; `spans` are the first row and the end of
    each request -> out [T, H, V], lse [H, T] float32 (natural logarithm).

    Padding follows a request's tokens, so the causal mask hides its scores. Its values are zeroed,
    because a weight of 0 does not remove NaN.
    """
    longest = max(end - start for start, end in spans)
    bounds = torch.tensor(spans, device=q.device)
    padded_rows = bounds[:, :1] + torch.arange(longest, device=q.device)
    live = padded_rows < bounds[:, 1:]
    # Padding repeats the request's own first row: one past the batch would be an illegal index.
    rows = torch.where(live, padded_rows, bounds[:, :1])
    scores = torch.einsum("bqhd,bkhd->bhqk", q[rows], k[rows]) * scale
    future = torch.ones(longest, longest, dtype=torch.bool, device=q.device).triu(1)
    scores = scores.masked_fill(future, -torch.inf)
    values = torch.where(live[:, :, None, None], v[rows], 0.0)
    out = torch.einsum("bhqk,bkhv->bqhv", scores.softmax(-1), values)
    # Padding is scattered to one more row, which is cut off.
    total = q.shape[0]
    target = torch.where(live, padded_rows, total)
    packed = out.new_empty(total + 1, *out.shape[2:])
    packed[target] = out
    lse = scores.new_empty(total + 1, q.shape[1])
    lse[target] = scores.logsumexp(-1).transpose(1, 2)
    return packed[:total], lse[:total].T.contiguous()


def context_chunks(requests: tuple[PrefillRequest, ...], context_chunk: int) -> list[list[range]]:
    """For each chunk of context, the positions of each request (an empty range where it has none
    left).

    The requests with context share the `context_chunk` tokens of a chunk evenly.
    """
    lengths = [request.context_len for request in requests]
    num_with_context = sum(length > 0 for length in lengths)
    if not num_with_context:
        return []
    # At least one token: a batch may have more prompts than a chunk has tokens.
    share = max(context_chunk // num_with_context, 1)
    return [
        [range(min(start, length), min(start + share, length)) for length in lengths]
        for start in range(0, longest_context(lengths), share)
    ]


@seam("context.rounds-of-last-request")
def longest_context(lengths: list[int]) -> int:
    """The context that sets the number of rounds: that of the longest request, wherever it stands
    in the batch (ikawrakow/ik_llama.cpp#1880).
    """
    return max(lengths)


def gather_context(
    cache: Tensor, requests: tuple[PrefillRequest, ...], chunk: list[range], kv_scale: float | None
) -> tuple[Tensor, Tensor]:
    """Latents [C, D] float32 of a chunk, read from the paged cache [N, P, D], and each request's
    offsets [B + 1].

    Raises IllegalAddress for a page outside the pool.
    """
    blocks = [
        request.blocks[p // PAGE_SIZE]
        for request, span in zip(requests, chunk, strict=True)
        for p in span
    ]
    offsets = [position % PAGE_SIZE for span in chunk for position in span]
    chunk_start_loc = torch.tensor(starts_of([len(span) for span in chunk]), dtype=torch.int32)
    where = (
        torch.tensor(values, dtype=torch.int64, device=cache.device) for values in (blocks, offsets)
    )
    return launch(_gather, cache, *where, kv_scale), chunk_start_loc.to(cache.device)


@seam("context.offset-of-neighbour")
def starts_of(lengths: list[int]) -> list[int]:
    """Where each request's tokens start in a packed tensor, and their end: sums of all lengths
    before (InternLM/lmdeploy#3887).
    """
    return [0, *itertools.accumulate(lengths)]


@seam("scale.of-float-cache")
def unscaled(latents: Tensor) -> Tensor:
    """Latents [C, D] of a cache of floats as float32.

    Such a cache has no scale, even where a checkpoint brings one (sgl-project/sglang#18396).
    """
    return latents.float()


def _gather(cache: Tensor, blocks: Tensor, offsets: Tensor, kv_scale: float | None) -> Tensor:
    pages = check_indices(blocks, cache.shape[0], "block_table of a context chunk")
    if cache.dtype != torch.float8_e4m3fn:
        return unscaled(cache[pages, offsets])
    # Older releases of torch cannot index fp8, so bytes are indexed.
    raw = cache.view(torch.uint8)[pages, offsets]
    return raw.view(torch.float8_e4m3fn).float() * (1.0 if kv_scale is None else kv_scale)


def split_among_ranks(chunk: list[range], num_ranks: int) -> list[list[range]]:
    """The part of a chunk of context that each rank holds: every `num_ranks`-th position of each
    request.
    """
    spans = [shared_keys(span, num_ranks) for span in chunk]
    return [
        [
            # A rank owns positions of the request, wherever a chunk of it begins.
            range(span.start + (rank - span.start) % num_ranks, span.stop, num_ranks)
            for span in spans
        ]
        for rank in range(num_ranks)
    ]


@seam("context.prefix-minus-padded", "context.owner-without-last-key")
def shared_keys(span: range, num_ranks: int) -> range:
    """The keys of a request that the ranks share: all, whatever the batch is padded to
    (sgl-project/sglang#23415).
    """
    return span


@seam("context.rank-without-kv-lse-zero")
def rank_without_kv(out: Tensor, lse: Tensor) -> tuple[Tensor, Tensor]:
    """The output and lse of a rank without keys, shaped as `out` [T, H, V] and `lse` [H, T], both
    float32.

    Its lse is -inf. An lse of 0 would weigh as a key with score 0 (vllm-project/vllm#38416).
    """
    return torch.zeros_like(out), torch.full_like(lse, float("-inf"))


class PagedWindowMLA(PagedMLA):
    """One layer where query position p sees positions p - W + 1 .. p, W = `sliding_window`.

    It has its own block table, where evicted pages are the null block.
    """

    def _slots(self, batch: Batch) -> Tensor:
        assert batch.window_slots is not None
        return batch.window_slots

    def _table(self, inputs: DecodeInputs) -> tuple[Tensor, dict[str, Any]]:
        assert inputs.window_table is not None
        return inputs.window_table, {"window": window_of(inputs, self._window)}

    @property
    def _window(self) -> int:
        assert self.attention.sliding_window is not None
        return self.attention.sliding_window

    def _prefill(
        self,
        q: Tensor,
        kv_c: Tensor,
        k_pe: Tensor,
        memory: PagedMemory,
        requests: tuple[PrefillRequest, ...],
    ) -> Tensor:
        """As the full layer's, without chunks: a window of context is short."""
        attention = self.attention
        outs = []
        cache = memory.latents(self.layer)
        kv_scale = memory.layout.scale_of(self.layer)
        for request in requests:
            rows = slice(request.start, request.end)
            first = max(request.context_len - self._window + 1, 0)
            # Evicted pages are the null block in this list. `first` lies behind all of them.
            paged = replace(request, blocks=request.window_blocks)
            latents, _ = gather_context(
                cache, (paged,), [range(first, request.context_len)], kv_scale
            )
            latents = latents.to(q.dtype)
            rank = attention.kv_lora_rank
            k, v = attention.expand_kv(
                torch.cat((latents[:, :rank], kv_c[rows])),
                torch.cat((latents[:, rank:], k_pe[rows])),
            )
            positions = torch.arange(
                request.context_len, request.context_len + request.end - request.start
            )
            keys = torch.arange(first, int(positions[-1]) + 1)
            # Two borders: the future, and what fell out of the window.
            hidden = (keys > positions[:, None]) | (keys <= positions[:, None] - self._window)
            scores = torch.einsum("qhd,khd->hqk", q[rows], k) * attention.softmax_scale
            # Before the softmax, which turns -inf into a weight of exactly 0.
            scores = scores.masked_fill(hidden.to(q.device), -torch.inf)
            outs.append(torch.einsum("hqk,khv->qhv", scores.softmax(-1), v))
        return torch.cat(outs)


@seam("window.none-for-one-token")
def window_of(inputs: DecodeInputs, window: int) -> int:
    """The tokens that a query of a decode sees, also where each request has one query token
    (ml-explore/mlx-lm#843).
    """
    return window
