"""Poison in a scheduler process of SGLang: memory without an owner is filled before each forward
pass.

`ModelRunner.forward` runs every batch, also where a graph is replayed, on the stream of the pass.
The fills are queued there before its work. A batch is the `ForwardBatch` of SGLang: `out_cache_loc`
[T] are the slots that it writes, `req_to_token` [rows, context] the slots of each request, and
`kv_buffer` [slots, 1, D] a layer's latents.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch_poison.cuda_sweep import CudaSweep
from torch_poison.patterns import bits_view, sentinel_bits

from mla_harness_adapters.plan import Plan, ServePoison
from mla_harness_sglang.free_list import free_pages, slots_of
from mla_harness_sglang.releases import GRAPH_RUNNER
from mla_harness_sglang.serve.plan import COUNTS, FREED, STEPS, SWEEPS

INPUTS = ("out_cache_loc", "req_pool_indices", "seq_lens")
"""Input buffers of a decode graph that SGLang must set for padded rows."""


class Pool(Protocol):
    """SGLang's `MLATokenToKVPool`."""

    kv_buffer: list[torch.Tensor]
    dtype: torch.dtype
    page_size: int
    size: int


class ForwardBatch(Protocol):
    """SGLang's `ForwardBatch`."""

    forward_mode: Any
    batch_size: int
    out_cache_loc: torch.Tensor
    req_pool_indices: torch.Tensor
    seq_lens: torch.Tensor
    input_ids: torch.Tensor


class SglangRunner(Protocol):
    """SGLang's `ModelRunner`."""

    token_to_kv_pool: Pool
    token_to_kv_pool_allocator: Any
    req_to_token_pool: Any


def install(runner_class: Any, plan: Plan) -> None:
    """Wrap `forward` of SGLang's `ModelRunner`.

    Without poison too: the hook counts the steps.
    """
    runner_class.forward = wrapped(runner_class.forward, ForwardPoison(plan.poison))


def wrapped(original: Callable[..., Any], before: ForwardPoison) -> Callable[..., Any]:

    @functools.wraps(original)
    def forward(self: SglangRunner, forward_batch: ForwardBatch, *args: Any, **kwargs: Any) -> Any:
        # An idle rank takes part with an empty batch, for the collectives alone.
        if not forward_batch.forward_mode.is_idle():
            with torch.inference_mode():
                before(self, forward_batch)
            COUNTS[STEPS] += 1
        return original(self, forward_batch, *args, **kwargs)

    return forward


class ForwardPoison:
    """Fills memory without an owner before a pass, or nothing without a poison."""

    def __init__(self, poison: ServePoison | None) -> None:
        self._poison = poison or ServePoison(())
        self._fills: dict[str, Callable[[SglangRunner, ForwardBatch], int]] = {
            "kv.free": self._free_slots,
            "kv.null": self._null_page,
            "kv.new": self._new_slots,
            "kv.tail": self._tails,
            "block_table.pad": self._tables,
            "graph.pad_rows": self._padded_rows,
        }

    def __call__(self, runner: SglangRunner, batch: ForwardBatch) -> None:
        if self._poison.fills(FREED):
            CudaSweep.of()()
            COUNTS[SWEEPS] += 1
        for site, fill in self._fills.items():
            if site in self._poison.sites:
                COUNTS[site] += fill(runner, batch)

    def _free_slots(self, runner: SglangRunner, batch: ForwardBatch) -> int:
        pages = free_pages(runner.token_to_kv_pool_allocator)
        return self._fill(runner, slots_of(pages, runner.token_to_kv_pool.page_size), "kv.free")

    def _null_page(self, runner: SglangRunner, batch: ForwardBatch) -> int:
        pool = runner.token_to_kv_pool
        return self._fill(
            runner, torch.arange(pool.page_size, device=pool.kv_buffer[0].device), "kv.null"
        )

    def _new_slots(self, runner: SglangRunner, batch: ForwardBatch) -> int:
        return self._fill(runner, batch.out_cache_loc.long(), "kv.new")

    def _tails(self, runner: SglangRunner, batch: ForwardBatch) -> int:
        page = runner.token_to_kv_pool.page_size
        table = runner.req_to_token_pool.req_to_token
        # The slots behind the last token in its own page: kernels load whole pages.
        last = table[batch.req_pool_indices.long(), batch.seq_lens.long() - 1].long()
        slots = last[:, None] + torch.arange(1, page, device=last.device)
        return self._fill(runner, slots[slots // page == (last // page)[:, None]], "kv.tail")

    def _tables(self, runner: SglangRunner, batch: ForwardBatch) -> int:
        """Point entries past each request of the batch, and rows of no request, to the pool's last
        slot.
        """
        requests = runner.req_to_token_pool
        pool = runner.token_to_kv_pool
        table = requests.req_to_token
        # A real address, whose content no request has: a wrong read is a wrong value, no fault.
        trap = pool.size + pool.page_size - 1
        ids = batch.req_pool_indices.long()
        columns = torch.arange(table.shape[1], device=table.device)
        table[ids] = table[ids].masked_fill(columns >= batch.seq_lens[:, None], trap)
        free = [int(row) for row in requests.free_slots]
        table[torch.tensor(free, dtype=torch.long, device=table.device)] = trap
        return batch.batch_size + len(free)

    def _padded_rows(self, runner: SglangRunner, batch: ForwardBatch) -> int:
        """Point the rows past the batch to slots in the middle of live requests.

        SGLang must set these rows before a replay: a padded row that keeps them overwrites a live
        latent.
        """
        buffers = getattr(GRAPH_RUNNER.value(runner), "buffers", None)
        if buffers is None or not batch.forward_mode.is_decode():
            return 0
        ids = batch.req_pool_indices.long()
        lengths = batch.seq_lens.long()
        count = batch.batch_size
        # Harmful if kept, and legal to read, so that what fails is the answer and not the process.
        slots = runner.req_to_token_pool.req_to_token[ids, lengths // 2]
        for name, values in zip(INPUTS, (slots, ids, lengths), strict=True):
            rows = getattr(buffers, name)[count:]
            rows.copy_(values[torch.arange(len(rows), device=rows.device) % count])
        return len(buffers.seq_lens) - count

    def _fill(self, runner: SglangRunner, slots: torch.Tensor, site: str) -> int:
        pool = runner.token_to_kv_pool
        for buffer in pool.kv_buffer:
            values = buffer.view(pool.dtype) if buffer.dtype != pool.dtype else buffer
            bits_view(values).index_fill_(0, slots, self._bits(pool.dtype, site))
        return slots.numel()

    def _bits(self, dtype: torch.dtype, site: str) -> int:
        if self._poison.pattern == "nan":
            return sentinel_bits(dtype, site)
        # The other pattern is the largest finite value: it passes checks for NaN and moves every
        # sum.
        return int(bits_view(torch.tensor([torch.finfo(dtype).max]).to(dtype)).item())
