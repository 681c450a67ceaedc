"""Poison within a step: fill the rows of context attention without context, which a kernel may
leave unwritten.

TRT-LLM's kernel on Blackwell leaves them unwritten; FlashAttention-3 writes them. The way in which
vLLM ignores these rows has changed twice, and the poison is always applied before it:

- up to 0.25 the last merge gets the number of rows with context; the other rows are filled after
  the context loop;
- in 0.26 and 0.27 vLLM masks rows of requests without a token in the chunk; they are filled right
  after the kernel;
- since 0.28 vLLM clears rows of requests without context where it allocates the result
  (vllm-project/vllm#50613); the result is filled as it is allocated.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from mla_harness_adapters.patches import replace
from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.objects import (
    ATTENTION_MODULE,
    AttentionMetadata,
    ContextImpl,
    CountedContext,
    InitContextPartial,
    MarkedContext,
    MaskedContext,
    PrefillBackend,
    PrefillMetadata,
    path_of,
)
from mla_harness_vllm.releases import MARKED_CONTEXT, MASKED_CONTEXT
from mla_harness_vllm.serve.writes import FILLED, fill, worker_rank

OUTPUT = "context.output"
LSE = "context.lse"


def install(poison: ServePoison) -> str:
    """Install the hook that fits this release.

    Returns the path of the patched function or class.
    """
    module: Any = importlib.import_module(ATTENTION_MODULE)
    if MARKED_CONTEXT.of(module):
        replace(
            module,
            "init_mla_context_partial",
            with_marked_rows(module.init_mla_context_partial, poison),
        )
        return path_of(InitContextPartial)
    owner = module.MLACommonImpl
    wrap = with_masked_rows if MASKED_CONTEXT.of(module) else with_counted_rows
    owner._compute_prefill_context = wrap(owner._compute_prefill_context, poison)
    return path_of(ContextImpl)


def with_counted_rows(original: Callable[..., Any], poison: ServePoison) -> Callable[..., Any]:
    """`_compute_prefill_context` that fills rows past `prefill_tokens_with_context`."""

    @functools.wraps(original)
    def compute(
        self: Any,
        q: Any,
        kv_c_and_k_pe_cache: Any,
        attn_metadata: AttentionMetadata,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        out, lse = original(self, q, kv_c_and_k_pe_cache, attn_metadata, *args, **kwargs)
        context: CountedContext = attn_metadata.prefill.chunked_context
        count = context.prefill_tokens_with_context
        # Requests with context stand in front. The rows behind them belong to requests without.
        if count is not None and count < out.shape[0] and poison.is_for(worker_rank()):
            fill(out[count:], poison.pattern, OUTPUT)
            fill(lse[:, count:], poison.pattern, LSE)
            FILLED.context_rows += out.shape[0] - count
        return out, lse

    return compute


def with_masked_rows(original: Callable[..., Any], poison: ServePoison) -> Callable[..., Any]:
    """`_compute_prefill_context` with a kernel that leaves rows without context in the chunk
    unwritten.
    """

    @functools.wraps(original)
    def compute(
        self: Any,
        q: Any,
        kv_c_and_k_pe_cache: Any,
        attn_metadata: AttentionMetadata,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        prefill = attn_metadata.prefill
        backend = prefill.prefill_backend
        if poison.is_for(worker_rank()):
            prefill.prefill_backend = _Skipping(backend, prefill, poison.pattern)
        try:
            return original(self, q, kv_c_and_k_pe_cache, attn_metadata, *args, **kwargs)
        finally:
            # The metadata lives on in the next layer, and must not wrap the wrapped backend.
            prefill.prefill_backend = backend

    return compute


class _Skipping:
    """A prefill backend that fills rows of requests without context in the chunk after its
    kernel.
    """

    def __init__(self, backend: PrefillBackend, prefill: PrefillMetadata, pattern: str) -> None:
        self._backend = backend
        self._prefill = prefill
        self._pattern = pattern

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def run_prefill_context_chunk(
        self, chunk_idx: int, q: Any, k: Any, v: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """out [T, H, V], lse [H, T]."""
        out, lse = self._backend.run_prefill_context_chunk(chunk_idx=chunk_idx, q=q, k=k, v=v)
        context: MaskedContext = self._prefill.chunked_context
        rows = rows_without(self._prefill.query_start_loc, context.cu_seq_lens[chunk_idx])
        fill(out, self._pattern, OUTPUT, rows)
        fill(lse.transpose(0, 1), self._pattern, LSE, rows)
        FILLED.context_rows += len(rows)
        return out, lse


def rows_without(query_start_loc: torch.Tensor, context_start_loc: torch.Tensor) -> torch.Tensor:
    """Query rows int64 [n] of requests without context.

    query_start_loc [R + 1] int32 is where the rows of each request begin, context_start_loc [R + 1]
    int32 where its context does. Waits for the device.
    """
    # A request may have context, and none of it in this chunk.
    is_empty = context_start_loc[1:] == context_start_loc[:-1]
    lengths = query_start_loc[1:] - query_start_loc[:-1]
    return is_empty.repeat_interleave(lengths.long()).nonzero().flatten()


def with_marked_rows(original: Callable[..., Any], poison: ServePoison) -> Callable[..., Any]:
    """`init_mla_context_partial` that fills its result before it clears the rows of
    `empty_token_slices`.
    """

    @functools.wraps(original)
    def init(chunked_context: MarkedContext, *args: Any, **kwargs: Any) -> Any:
        if not poison.is_for(worker_rank()):
            return original(chunked_context, *args, **kwargs)
        with _Unwritten(poison.pattern) as unwritten:
            made = original(chunked_context, *args, **kwargs)
        # Counted where it was filled: a release that allocates elsewhere then shows a count of 0,
        # and the case is an error, no pass.
        if unwritten.num_filled:
            FILLED.context_rows += sum(
                rows.stop - rows.start for rows in chunked_context.empty_token_slices
            )
        return made

    return init


class _Unwritten(TorchFunctionMode):
    """`torch.empty` returns memory filled with the pattern.

    Log-sum-exps have two dims, outputs three.
    """

    def __init__(self, pattern: str) -> None:
        super().__init__()
        self.num_filled = 0
        self._pattern = pattern

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        made = function(*args, **(kwargs or {}))
        if function is torch.empty:
            fill(made, self._pattern, LSE if made.ndim == 2 else OUTPUT)
            self.num_filled += 1
        return made
