"""Poison inside a vLLM worker: uninitialised memory is filled before each step, and before vLLM
zeroes anything.

Both model runners get the scheduler's output in `execute_model`. There the ids of new blocks are
known and vLLM has not zeroed them yet. All fills are queued on the current stream, before the work
of the step. One site is filled within a step: rows of context attention for tokens without context
(`context_rows`).
"""

from __future__ import annotations

import functools
import importlib
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict
from typing import Any

import torch
from torch_poison.patterns import bits_view, sentinel_bits

from mla_harness_adapters.plan import ServePoison
from mla_harness_vllm.cpu import allocations
from mla_harness_vllm.cpu.settings import serves_on_cpu
from mla_harness_vllm.objects import (
    RUNNERS,
    AttentionLayer,
    FirstRunner,
    KVCacheConfig,
    KVCacheSpec,
    SchedulerOutput,
    SecondRunner,
)
from mla_harness_vllm.serve import context_rows, segments
from mla_harness_vllm.serve.settings import CONTEXT, FREED, TOPK, parse_poison
from mla_harness_vllm.serve.writes import FILLED, FINITE, fill, worker_rank

Runner = FirstRunner | SecondRunner
INDEX_KEY = 128
"""Bytes of a key of an indexer."""
INDEX_SCALE = 4
"""Bytes of the scale of such a key."""
PRINTED_STEPS = frozenset(10**power for power in range(9))
"""Steps after which a worker prints its counts: a server has no caller that could read them."""


def runners() -> Iterator[Any]:
    """The class of every model runner of this release."""
    for path in RUNNERS:
        module, _, name = path.partition(":")
        try:
            yield getattr(importlib.import_module(module), name)
        except (ImportError, AttributeError):
            continue


def install(text: str) -> None:
    """Wrap `execute_model` of every runner of this release, and what else the poison needs, see
    `settings.parse_poison`.
    """
    poison = parse_poison(text)
    if poison.fills(FREED) and serves_on_cpu():
        allocations.install(runners(), poison.pattern)
    for runner in runners():
        runner.execute_model = _wrapped(runner.execute_model, StepPoison(poison))
    if poison.fills(CONTEXT):
        context_rows.install(poison)
    if "graph.pool" in poison.sites and poison.pattern == "nan":
        segments.install()


def _wrapped(original: Callable[..., Any], before: StepPoison) -> Callable[..., Any]:
    @functools.wraps(original)
    def execute_model(
        self: Runner, scheduler_output: SchedulerOutput, *args: Any, **kwargs: Any
    ) -> Any:
        # Dummy and profile runs of the second runner have no requests, and their caches are not
        # allocated yet.
        if not kwargs.get("dummy_run"):
            before(self, scheduler_output)
        return original(self, scheduler_output, *args, **kwargs)

    return execute_model


class StepPoison:
    """Fills uninitialised memory before a step."""

    def __init__(self, poison: ServePoison) -> None:
        self._poison = poison

    def __call__(self, runner: Runner, step: SchedulerOutput) -> None:
        """Poison before one step, in inference mode: vLLM's caches can be changed in no other
        mode.
        """
        if self._poison.is_for(worker_rank()):
            with torch.inference_mode():
                self._before(runner, step)
        FILLED.steps += 1
        if FILLED.steps in PRINTED_STEPS:
            print(
                f"mla-harness: {self._poison.text()} in process {os.getpid()}: {asdict(FILLED)}",
                file=sys.stderr,
            )

    def _before(self, runner: Runner, step: SchedulerOutput) -> None:
        if self._poison.fills(FREED) and not serves_on_cpu() and not is_capturing():
            from torch_poison.cuda_sweep import CudaSweep

            CudaSweep.of()()
            FILLED.sweeps += 1
        if "workspace" in self._poison.sites and not is_capturing():
            for buffer in workspaces():
                fill(
                    buffer[: len(buffer) // 2 * 2].view(torch.bfloat16),
                    self._poison.pattern,
                    "workspace",
                )
                FILLED.workspaces += 1
        if TOPK in self._poison.sites:
            for module in runner.get_model().modules():
                if isinstance(chosen := getattr(module, "topk_indices_buffer", None), torch.Tensor):
                    # A valid place, in a block that no request of this length has.
                    chosen.fill_(runner.vllm_config.model_config.max_model_len - 1)
                    FILLED.topk_buffers += 1
        if "kv.null" in self._poison.sites:
            for group, caches in groups(runner):
                self._fill(runner, group, caches, [0])
        if "kv.new" in self._poison.sites:
            for group, caches in groups(runner):
                self._fill(
                    runner, group, caches, new_blocks(step, group, block_tokens(runner, group))
                )
        if "kv.tail" in self._poison.sites:
            self._tails(runner, step)

    def _tails(self, runner: Runner, step: SchedulerOutput) -> None:
        """Fill the slots of each new request's last block that this step does not write."""
        for group, caches in groups(runner):
            size = block_tokens(runner, group)
            for request in step.scheduled_new_reqs:
                length = request.num_computed_tokens + step.num_scheduled_tokens[request.req_id]
                blocks = request.block_ids[group]
                if length % size and length // size < len(blocks):
                    self._fill(runner, group, caches, [blocks[length // size]], length % size)

    def _fill(
        self,
        runner: Runner,
        group: int,
        caches: list[torch.Tensor],
        blocks: list[int],
        start: int = 0,
    ) -> None:
        """Fill scheduler blocks from token `start` on.

        One is some kernel blocks of each cache [N, P, D].

        A slot of a compressed cache is of several tokens, and is written with the last of them.
        """
        for cache in caches if blocks else ():
            ratio = len(cache) // runner.kv_cache_config.num_blocks
            page = cache.shape[1]
            slot = start * ratio * page // block_tokens(runner, group)
            ids = torch.tensor(blocks, device=cache.device)
            for part in range(ratio):
                first = min(page, max(0, slot - part * page))
                if first < page:
                    self._fill_pages(cache, ids * ratio + part, first)
        FILLED.blocks += len(blocks)

    def _fill_pages(self, cache: torch.Tensor, ids: torch.Tensor, first: int) -> None:
        """Fill slots from `first` on of the blocks `ids` [n] of a cache [N, P, D]."""
        values = cache.view(torch.float8_e4m3fn) if cache.dtype == torch.uint8 else cache
        if self._poison.pattern == "nan":
            bits: int | torch.Tensor = sentinel_bits(values.dtype, "kv.new")
        else:
            # Older torch cannot index fp8, so the bits of the value are written.
            value = FINITE if self._poison.pattern == "finite" else torch.finfo(values.dtype).max
            bits = bits_view(torch.full((1,), value, device=cache.device).to(values.dtype))
        if values.dtype == cache.dtype or cache.shape[2] != INDEX_KEY + INDEX_SCALE:
            bits_view(values)[ids, first:] = bits
            return
        # A page of an indexer: all keys, then all scales.
        page = bits_view(values).view(len(cache), -1)
        end = cache.shape[1] * INDEX_KEY
        page[ids, first * INDEX_KEY : end] = bits
        page[ids, end + first * INDEX_SCALE :] = bits


def is_capturing() -> bool:
    """Whether a CUDA graph is being captured: it must record no fill."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


def workspaces() -> list[torch.Tensor]:
    """The scratch that vLLM keeps for all its layers, bytes [N] each.

    It is never free, so no sweep fills it.

    Attention and experts use the same bytes one after another (vllm-project/vllm#57017).
    """
    manager = getattr(sys.modules.get("vllm.v1.worker.workspace"), "_manager", None)
    return (
        []
        if manager is None
        else [buffer for buffer in manager._current_workspaces if buffer is not None]
    )


def groups(runner: Runner) -> Iterator[tuple[int, list[torch.Tensor]]]:
    """KV groups of latents: index and caches [N, P, D]."""
    config: KVCacheConfig | None = getattr(runner, "kv_cache_config", None)
    if config is None:
        return
    layers = runner.vllm_config.compilation_config.static_forward_context
    for index, group in enumerate(config.kv_cache_groups):
        if not is_latent(group.kv_cache_spec):
            continue
        caches: dict[int, torch.Tensor] = {}
        for name in group.layer_names:
            layer: AttentionLayer | None = layers.get(name)
            cache: Any = getattr(layer, "kv_cache", None)
            if isinstance(cache, list | tuple):
                cache = cache[0] if cache else None
            if isinstance(cache, torch.Tensor) and cache.ndim == 3:
                caches[cache.data_ptr()] = cache
        if caches:
            yield index, list(caches.values())


def is_latent(spec: KVCacheSpec) -> bool:
    """Whether a KV spec is of MLA layers: one spec, or several that the group wraps."""
    inner = getattr(spec, "kv_cache_specs", None)
    specs = list(inner.values()) if isinstance(inner, dict) else [spec]
    return all(type(one).__name__.endswith("MLAAttentionSpec") for one in specs)


def block_tokens(runner: Runner, group: int) -> int:
    return int(runner.kv_cache_config.kv_cache_groups[group].kv_cache_spec.block_size)


def new_blocks(step: SchedulerOutput, group: int, size: int) -> list[int]:
    """Ids of new blocks of this step. Blocks of a prefix hit are written already and left out."""
    found: list[int] = []
    for request in step.scheduled_new_reqs:
        found += request.block_ids[group][-(-request.num_computed_tokens // size) :]
    cached = step.scheduled_cached_reqs
    for request_id, given, computed in zip(
        cached.req_ids, cached.new_block_ids, cached.num_computed_tokens, strict=True
    ):
        if given is not None:
            skipped = -(-computed // size) if request_id in cached.resumed_req_ids else 0
            found += given[group][skipped:]
    return [block for block in found if block != 0]
