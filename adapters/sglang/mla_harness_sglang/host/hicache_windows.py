"""SGLang's HiCache on a CPU with the pools of DeepSeek V4, whose layers read a sliding window.

Each layer has latents of its window in a pool of its own. The slot of a token there is found
through `full_to_swa_index_mapping`. Some layers have compressed latents too, index keys, and the
states that compress. SGLang's code schedules the requests: prompts come in chunks, and slots that
leave the window are freed meanwhile. The model is the harness's: it reads the records of the tokens
that it needs, and writes the owners of new ones.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from sglang.srt.mem_cache import deepseek_v4_memory_pool
from sglang.srt.mem_cache.allocator.swa import SWATokenToKVPoolAllocator
from sglang.srt.mem_cache.base_prefix_cache import EvictParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import ReqToTokenPool
from torch import Tensor

from harness.api import Landed, owner_records, read_rows, unsent
from mla_harness_adapters.moving_device import Device, Span
from mla_harness_adapters.releases import accepted
from mla_harness_sglang.free_list import free_pages
from mla_harness_sglang.host.hicache_requests import owner
from mla_harness_sglang.host.scheduling import (
    FINISHED,
    RequestScheduler,
    prefix_length,
    publish,
)
from mla_harness_sglang.host.tree import make_room, tree_of

ARGUMENTS: dict[str, Any] = read_rows(Path(__file__).with_suffix(".yaml"))
DTYPE = torch.float8_e4m3fn
RATIOS = ARGUMENTS["compression_ratios"]
PAGE = ARGUMENTS["pool"]["page_size"]
WINDOW = ARGUMENTS["pool"]["sliding_window"]
NUM_PAGES = 12
NUM_WINDOW_PAGES = 7
CHUNK = 4 * PAGE
NUM_ANSWERS = {6: PAGE + 12}
"""Request -> its answers, if they are many: slots leave the window while it decodes."""
FEW_ANSWERS = 5
LONGEST = 10 * PAGE
MISSING = 2
"""Tokens that a prompt lacks to the end of its last page: the answers reach into the next one."""
RING = 8
"""Records of states that a page of a window has."""
OF_INDEXER = 64
"""What is added to a layer's number for the states of its indexer."""


class Part(NamedTuple):
    """Records that lie one behind the other in a page: `length` from the record `first` on.

    They are those of `position` and of the positions behind it, counted in records.
    """

    page: int
    first: int
    position: int
    length: int


@dataclass(frozen=True, slots=True)
class LayerMemory:
    """One memory of a layer: `pages` [pages, bytes] uint8, each with `per_page` records of
    `num_bytes`, of `ratio` tokens each.

    `allocator` gives its pages away. `ask` gets it from SGLang as the model does, which waits until
    the layer is loaded. `place` turns the slots [tokens] int64 of a request and positions [n]
    int64, counted in records, into the numbers [n] int64 of records. `read` gives the positions
    that tokens from `start` on need.
    """

    allocator: Any
    group: str
    layer: int
    ratio: int
    per_page: int
    num_bytes: int
    pages: Tensor
    ask: Callable[[], object]
    place: Callable[[Tensor, Tensor], Tensor]
    read: Callable[[int], range]

    @property
    def name(self) -> str:
        return f"{self.group} of layer {self.layer}"

    def written(self, start: int, end: int) -> list[int]:
        """The positions of records that the tokens from `start` to `end` write, and that none of
        them overwrites.
        """
        whole = range(start // self.ratio, end // self.ratio)
        page = PAGE // self.ratio
        return [
            at for at in whole if at + self.per_page >= min(whole.stop, (at // page + 1) * page)
        ]

    def parts(self, slots: Tensor, positions: Sequence[int]) -> list[Part]:
        """Where the records of positions are, for a request with slots [tokens] int64."""
        found: list[Part] = []
        places = self.place(slots, torch.tensor(positions, dtype=torch.int64)).tolist()
        page = PAGE // self.ratio
        for position, record in zip(positions, places, strict=True):
            at, first = divmod(record, self.per_page)
            last = found[-1] if found else None
            # A page of the request may have another owner than the page before it.
            if last and (last.page, last.first + last.length) == (at, first) and position % page:
                found[-1] = last._replace(length=last.length + 1)
            else:
                found.append(Part(at, first, position, 1))
        return found

    def span(self, part: Part) -> Span:
        start = part.first * self.num_bytes
        return self.name, part.page, start, start + part.length * self.num_bytes

    def records(self, part: Part) -> Tensor:
        """The records [length, num_bytes] uint8 that are there."""
        _, page, start, end = self.span(part)
        return self.pages[page, start:end].view(part.length, self.num_bytes)

    def wanted(self, number: int, part: Part) -> Tensor:
        """The records [length, num_bytes] uint8 of a request's tokens."""
        of = owner(number, part.position * self.ratio // PAGE)
        # Always of the longest request, so that they are made once.
        known = owner_records(self.group, self.layer, of, LONGEST // self.ratio, self.num_bytes)
        return known[part.position : part.position + part.length]


class WindowServer:
    """One server. It serves the requests one at a time."""

    def __init__(self, device: Device, options: dict[str, Any]) -> None:
        self._device = device
        self.landed = Landed()
        self.num_loaded = 0
        arguments = publish(PAGE, **options)
        pool = pool_of()
        rows = ReqToTokenPool(1, LONGEST, "cpu", False)
        alloc = SWATokenToKVPoolAllocator(
            NUM_PAGES * PAGE, NUM_WINDOW_PAGES * PAGE, PAGE, DTYPE, "cpu", pool, False
        )
        cache = CacheInitParams(False, rows, alloc, PAGE, sliding_window_size=WINDOW)
        tree = tree_of(arguments, cache, is_hierarchical=True, has_windows=True)
        pool.register_layer_transfer_counter(tree.cache_controller.layer_done_counter)
        self._scheduler = RequestScheduler(rows, alloc, tree)
        self._memory = list(memory_of(pool, alloc))
        self._free: dict[Any, set[int]] = {}
        for one in self._memory:
            # Every word says that nothing was written here, until a request's layer writes its
            # owners.
            one.pages.copy_(unsent(one.pages.numel()).view(one.pages.shape))
            device.caches[one.name] = one.pages
            self._free[one.allocator] = set(free_pages(one.allocator).tolist())

    def serve(self, step: int, number: int, num_pages: int) -> None:
        """Do what a scheduler does with one request: prefill its chunks, decode, and release."""
        scheduler = self._scheduler
        length = num_pages * PAGE - MISSING
        num_answers = NUM_ANSWERS.get(step, FEW_ANSWERS)
        req = scheduler.request(f"r{step}", tokens_of(number, 0, length), num_answers)
        batch: Any = None
        is_first = True
        while batch is None:
            is_whole = scheduler.admit(req, CHUNK, is_first=is_first)
            if is_first:
                self.num_loaded += req.swa_host_hit_length
            is_first = False
            # What comes back from the host has its slots now.
            self._make_room(CHUNK)
            start = prefix_length(req)
            extended = scheduler.extend([req])
            self._forward(req, number, start, start + len(extended.out_cache_loc))
            scheduler.forward(extended)
            if is_whole:
                batch = extended
            else:
                scheduler.keep(req, is_chunked=True)
        with scheduler.result(is_prefill=True):
            req.output_ids.extend(tokens_of(number, length, length + 1))
            scheduler.keep(req, is_chunked=False)
        for at in range(length, length + num_answers - 1):
            self._make_room(PAGE)
            batch.prepare_for_decode()
            self._forward(req, number, at, at + 1)
            scheduler.forward(batch)
            with scheduler.result(is_prefill=False):
                req.output_ids.extend(tokens_of(number, at + 1, at + 2))
                if at == length + num_answers - 2:
                    req.finished_reason = FINISHED
                    scheduler.release(req)
        self._device.streams.progress(6)

    def _make_room(self, num_tokens: int) -> None:
        """Evict until the allocator has slots for a step."""
        alloc = self._scheduler.alloc

        def lacking() -> EvictParams:
            self._forget()
            return EvictParams(
                num_tokens=max(0, num_tokens - alloc.full_available_size()),
                swa_num_tokens=max(0, num_tokens - alloc.swa_available_size()),
            )

        make_room(self._scheduler.tree, self._device, lacking)

    def _forget(self) -> None:
        """Launch a fill of the pages that were freed since the last call: whoever reads them reads
        nobody's bytes.
        """
        for allocator, known in self._free.items():
            self._free[allocator] = free = set(free_pages(allocator).tolist())
            for one in (one for one in self._memory if one.allocator is allocator):
                pages = sorted(free - known)
                nothing = unsent(one.pages.shape[1])
                run = partial(one.pages.__setitem__, pages, nothing)
                spans = [(one.name, page, 0, one.pages.shape[1]) for page in pages]
                title = f"fill of free pages of the {one.name}"
                self._device.streams.launch(self._device.current, title, run, (), spans)

    def _forward(self, req: Any, number: int, start: int, end: int) -> None:
        """Launch each layer for the tokens from `start` to `end`: compare what it reads, and write
        the owners of what is new.
        """
        tree, current = self._scheduler.tree, self._device.current
        # The model waits for each layer's load by this counter.
        tree.cache_controller.layer_done_counter.set_consumer(tree.ready_to_load_host_cache())
        slots = self._scheduler.slots_of(req, end)
        for one in self._memory:
            one.ask()
            old = one.parts(slots, one.read(start))
            new = one.parts(slots, one.written(start, end))
            title = f"{req.rid} from token {start} on, for the {one.name}"
            run = partial(self._run, title, one, number, old, new)
            spans = [[one.span(part) for part in side] for side in (old, new)]
            self._device.streams.launch(current, title, run, *spans)
        self._device.streams.synchronize(self._device.streams.record(current))
        tree.check_hicache_events()

    def _run(
        self, title: str, memory: LayerMemory, number: int, old: list[Part], new: list[Part]
    ) -> None:
        for part in old:
            self.landed.compare(
                memory.records(part),
                memory.wanted(number, part),
                memory.num_bytes,
                memory.span(part),
                title,
            )
        for part in new:
            memory.records(part).copy_(memory.wanted(number, part))


def pool_of() -> Any:
    """The pools of DeepSeek V4 with FP8 records, of sizes in the ratios that SGLang gives them."""
    cls = deepseek_v4_memory_pool.DeepSeekV4TokenToKVPool
    num_slots = NUM_PAGES * PAGE
    known = {
        **ARGUMENTS["pool"],
        "dtype": DTYPE,
        "swa_size": NUM_WINDOW_PAGES * PAGE,
        "c4_size": num_slots // 4,
        "c128_size": num_slots // 128,
        "c4_state_pool_size": NUM_WINDOW_PAGES * RING,
        "c128_state_pool_size": 0,
        "state_dtype": torch.bfloat16,
        "c4_state_dtype": torch.bfloat16,
        "c128_state_dtype": torch.bfloat16,
        "layer_num": len(RATIOS),
        "compression_ratios": RATIOS,
        "start_layer": 0,
        "end_layer": len(RATIOS),
        "full_size": num_slots,
    }
    return cls(**accepted(known, cls.__init__))


def memory_of(pool: Any, alloc: Any) -> Iterator[LayerMemory]:
    """All memory of the model in the order of a step: states, index keys, compressed latents, and
    the latents of the window.
    """

    for layer, ratio in enumerate(RATIOS):
        if ratio == 4:
            yield _states(alloc, layer, partial(pool.get_attention_compress_states, layer))
            ask = partial(pool.get_indexer_compress_states, layer)
            yield _states(alloc, layer + OF_INDEXER, ask)
            ask = partial(pool.get_index_k_with_scale_buffer, layer)
            yield _compressed(alloc, "index", layer, ratio, ask)
        if ratio:
            ask = partial(pool.get_extra_key_buffer, layer)
            yield _compressed(alloc, "latent", layer, ratio, ask)
        yield _window(alloc, layer, partial(pool.get_swa_key_buffer_radix, layer))


def _window(alloc: Any, layer: int, ask: Callable[[], Tensor]) -> LayerMemory:
    """Records of single tokens, which tokens up to WINDOW - 1 places behind them read."""

    def place(slots: Tensor, positions: Tensor) -> Tensor:
        found: Tensor = alloc.translate_loc_from_full_to_swa(slots[positions])
        return found

    def read(start: int) -> range:
        return range(max(0, start - WINDOW + 1), start)

    pages = ask().view(torch.uint8)
    return LayerMemory(
        alloc.swa_attn_allocator,
        "window",
        layer,
        ratio=1,
        per_page=PAGE,
        num_bytes=pages.shape[1] // PAGE,
        pages=pages,
        ask=ask,
        place=place,
        read=read,
    )


def _compressed(
    alloc: Any, group: str, layer: int, ratio: int, ask: Callable[[], Tensor]
) -> LayerMemory:
    """Records of `ratio` tokens each, in pages that have the numbers of the tokens' pages."""

    def place(slots: Tensor, positions: Tensor) -> Tensor:
        return slots[(positions + 1) * ratio - 1] // ratio

    def read(start: int) -> range:
        return range(start // ratio)

    pages = ask().view(torch.uint8)
    per_page = PAGE // ratio
    return LayerMemory(
        alloc.full_attn_allocator,
        group,
        layer,
        ratio=ratio,
        per_page=per_page,
        num_bytes=pages.shape[1] // per_page,
        pages=pages,
        ask=ask,
        place=place,
        read=read,
    )


def _states(alloc: Any, layer: int, ask: Callable[[], Any]) -> LayerMemory:
    """What the tokens of a block that is not complete have for its compressed latent: a ring of
    records in each page of a window.
    """
    states = ask()
    buffer = states.kv_score_buffer.kv_score.view(torch.uint8)
    num_pages = NUM_WINDOW_PAGES + 1
    pages = buffer[: num_pages * RING].view(num_pages, RING * buffer.shape[1])

    def place(slots: Tensor, positions: Tensor) -> Tensor:
        in_window = alloc.translate_loc_from_full_to_swa(slots[positions])
        found: Tensor = states.translate_from_swa_loc_to_state_loc(in_window)
        return found

    def read(start: int) -> range:
        # Blocks of 4 tokens overlap by one block.
        return range(max(0, start // 4 * 4 - 4), start)

    return LayerMemory(
        alloc.swa_attn_allocator,
        "state",
        layer,
        ratio=1,
        per_page=RING,
        num_bytes=buffer.shape[1],
        pages=pages,
        ask=ask,
        place=place,
        read=read,
    )


def tokens_of(number: int, start: int, end: int) -> list[int]:
    """The tokens of a request in a range of positions. Some requests begin as another one."""
    return [100_000 * owner(number, at // PAGE) + at for at in range(start, end)]
