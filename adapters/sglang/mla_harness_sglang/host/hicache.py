"""SGLang's HiCache on a CPU: do pages that come back from the host's memory hold what their tokens
need?

A prefix is cached and backed up to the host. Other requests write to its pages. A later request
finds the prefix on the host, and its pages come back. Pools, radix cache, controller and the choice
of buffers, indices and layers are SGLang's. The streams, the transfer kernels and the model are the
harness's. The model writes owners.
"""

from __future__ import annotations

import contextlib
import importlib
import math
import sys
from array import array
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from sglang.srt.mem_cache import memory_pool
from sglang.srt.mem_cache.base_prefix_cache import (
    EvictParams,
    InitLoadBackParams,
    InsertParams,
    MatchPrefixParams,
)
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.radix_cache import RadixKey
from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Landed, Moved, Refused, Run, in_orders, owner_records, read_rows, unsent
from mla_harness_adapters.moving_device import Device, DeviceEvent
from mla_harness_sglang.host.hicache_requests import REQUESTS, owner
from mla_harness_sglang.host.scheduling import allocator_of, publish
from mla_harness_sglang.host.tree import make_room, tree_of
from mla_harness_sglang.params import SglangHostParams
from mla_harness_sglang.releases import (
    ALLOCATOR_OF_WINDOWS,
    HOST_MEMORY,
    PARAMETERS_OF_UNLOCK,
    SLOTS_OF_PATH,
    SPARSE_POOL,
    STATES_ON_HOST,
    STATES_WITH_INDEX,
)

if TYPE_CHECKING:
    from mla_harness_sglang.host.hicache_windows import WindowServer

CACHE = "sglang.srt.mem_cache"
for name in (
    "hybrid_cache.hybrid_pool_assembler",
    "hiradix_cache",
    "unified_radix_cache",
    "pool_host.dsa",
):
    with contextlib.suppress(ModuleNotFoundError):
        importlib.import_module(
            f"{CACHE}.{name}"
        )  # here: `in_place` replaces names in modules that are imported

ARGUMENTS: dict[str, Any] = read_rows(Path(__file__).with_suffix(".yaml"))
POOL = ARGUMENTS["pool"]
PAGE = POOL["page_size"]
TOKEN_BYTES = 2 * POOL["kv_cache_dim"]
NUM_PAGES = POOL["size"] // PAGE
NUM_STATES = ARGUMENTS["rows"]["mamba_size"]
NUM_SCHEDULES = 6
MOST_SEARCHED = 6
Rows = list[tuple[int, int]]
"""Rows of memory: a page or the slot of a state, and its place in the sequence in pages."""


class TransferKernels:
    """SGLang's transfer kernels: each copies the rows or pages that it is given, on the current
    stream.
    """

    def __init__(self, device: Device) -> None:
        self._device = device

    def _copy(self, parts: list[tuple[int, int, int]]) -> None:
        self._device.copy(self._device.current, *zip(*parts, strict=True))

    def transfer_kv_all_layer_mla(
        self,
        src_layers: Any,
        dst_layers: Any,
        src_indices: Tensor,
        dst_indices: Tensor,
        item_size: int,
        **_: Any,
    ) -> None:
        """Copy rows of `item_size` bytes, of all layers, which are given by address: from
        src_indices [n] to dst_indices [n], both int64.
        """
        rows = list(zip(src_indices.tolist(), dst_indices.tolist(), strict=True))
        layers = zip(map(int, src_layers), map(int, dst_layers), strict=True)
        self._copy(
            [(a + i * item_size, b + j * item_size, item_size) for a, b in layers for i, j in rows]
        )

    def transfer_kv_per_layer_mla(self, src: Tensor, dst: Tensor, **more: Any) -> None:
        """Copy rows of one layer from src [rows, ...] to dst [rows, ...], both of one dtype."""
        self.transfer_kv_all_layer_mla([src.data_ptr()], [dst.data_ptr()], **more)

    def transfer_kv_all_layer_direct_lf_pf(
        self, src_ptrs: Any, dst_ptrs: Any, src_indices: Tensor, dst_indices: Tensor, page_size: int
    ) -> None:
        """Copy slots of all layers to the host, where a page has all layers: from src_indices [n]
        to dst_indices [n], both int64.
        """
        pages = _pages(enumerate(src_ptrs), dst_ptrs[0], src_indices, dst_indices, page_size)
        self._copy([(here.data_ptr(), there.data_ptr(), here.nbytes) for here, there in pages])

    def transfer_kv_per_layer_direct_pf_lf(
        self,
        src_ptrs: Any,
        dst_ptrs: Any,
        src_indices: Tensor,
        dst_indices: Tensor,
        layer_id: int,
        page_size: int,
    ) -> None:
        """Copy slots of one layer from the host, where a page has all layers: from src_indices [n]
        to dst_indices [n], both int64.
        """
        pages = _pages([(layer_id, dst_ptrs[0])], src_ptrs[0], dst_indices, src_indices, page_size)
        self._copy([(there.data_ptr(), here.data_ptr(), here.nbytes) for here, there in pages])


def _pages(
    layers: Any, host: Tensor, mine: Tensor, its: Tensor, size: int
) -> Iterator[tuple[Tensor, Tensor]]:
    """The pages of slots `mine` [n] of each layer, and those of `its` [n] in memory of the host
    [pages, layers, …].
    """
    for number, layer in layers:
        for i, j in zip(mine[::size].tolist(), its[::size].tolist(), strict=True):
            yield layer[i : i + size], host[j // size, number]


@contextlib.contextmanager
def in_place(device: Device) -> Iterator[None]:
    """Let SGLang use `device` for the length of the block: streams and events, kernels, memory that
    no GPU pins.
    """
    streams = SimpleNamespace(
        Stream=device.stream, stream=device.within, current_stream=device.current_stream
    )
    streams.Event = lambda **_: DeviceEvent(device)
    copies = TransferKernels(device)
    kernels = {
        name: getattr(copies, name) for name in dir(TransferKernels) if name.startswith("transfer")
    }
    memory = HOST_MEMORY.module().ALLOC_MEMORY_FUNCS

    def new(dims: Sequence[int], dtype: torch.dtype, **_: object) -> torch.Tensor:
        # Bytes that no request sent. A copy of them is seen by whoever reads it.
        return unsent(math.prod(dims) * dtype.itemsize).clone().view(dtype).view(dims)

    with contextlib.ExitStack() as stack:
        for name, module in list(sys.modules.items()):
            if name.startswith("sglang.srt") and hasattr(module, "device_module"):
                stack.enter_context(mock.patch.object(module, "device_module", streams))
            if name.startswith(CACHE) and "host" in name:
                stack.enter_context(mock.patch.multiple(module, create=True, **kernels))
        stack.enter_context(mock.patch.dict(memory, {"cpu": new, torch.device("cpu"): new}))
        stack.enter_context(
            mock.patch.object(torch.distributed, "get_world_size", lambda group=None: 1)
        )
        yield


class HiCacheServer:
    """One server. It serves the requests one at a time."""

    def __init__(self, device: Device, options: dict[str, Any], *, has_states: bool) -> None:
        self._device = device
        self.landed = Landed()
        self.num_loaded = 0
        self._has_states = has_states
        arguments = publish(PAGE, **options)
        arguments._mamba_cache_chunk_size = PAGE  # else SGLang reads the model's settings
        self._pool, self._rows = self._pools()
        self._alloc = allocator_of(PAGE, NUM_PAGES * PAGE, self._pool)
        cache = CacheInitParams(
            False, self._rows, self._alloc, PAGE, enable_mamba_extra_buffer=self._has_states
        )
        self._tree = tree_of(
            arguments, cache, is_hierarchical=True, is_sparse=True, has_states=self._has_states
        )
        self._pool.register_layer_transfer_counter(self._tree.cache_controller.layer_done_counter)
        for title, _, _, memory in self._memory():
            # Every word says that nothing was written here, until a request's layer writes its
            # owners.
            memory.copy_(unsent(memory.numel()).view(memory.shape))
            device.caches[title] = memory

    def _pools(self) -> tuple[Any, Any]:
        """What the model reads latents and index keys from, and the rows of requests."""
        known = POOL | {"dtype": torch.bfloat16}
        if not self._has_states:
            sparse = SPARSE_POOL.of(memory_pool)
            return sparse(layer_num=2, **known), memory_pool.ReqToTokenPool(1, 1024, "cpu", False)
        if not STATES_WITH_INDEX.is_argument(memory_pool.HybridLinearKVPool.__init__):
            raise Refused("this release has no model with recurrent states and index keys")
        shape = SimpleNamespace(conv=[(4, 8)], temporal=(2, 4, 8))
        dtype = SimpleNamespace(conv=torch.bfloat16, temporal=torch.float32)
        state = SimpleNamespace(shape=shape, dtype=dtype, is_kda=True)
        rows = memory_pool.HybridReqToTokenPool(**ARGUMENTS["rows"], cache_params=state)
        return memory_pool.HybridLinearKVPool(
            **known, **ARGUMENTS["hybrid"], mamba_pool=rows.mamba_pool
        ), rows

    def _memory(self) -> Iterator[tuple[str, str, int, Tensor]]:
        """Memory [rows, bytes] uint8 in the order of a step, as a model asks for it: title, group,
        layer, memory.
        """
        for layer in range(4 if self._has_states else 2):
            if self._has_states and layer % 2 == 0:
                yield _as_rows("state", layer, self._rows.mamba2_layer_cache(layer).temporal)
            else:
                yield _as_rows(
                    "index", layer, self._pool.get_index_k_with_scale_buffer(layer)
                )  # the indexer is first
                yield _as_rows("latent", layer, self._pool.get_key_buffer(layer))

    def serve(self, step: int, number: int, num_pages: int) -> None:
        """Do what a scheduler does with one request: match, load, make room, compute, and cache."""
        tree = self._tree
        key = RadixKey(array("q", prompt(number, num_pages)))
        state_slot = {"mamba_pool_idx": None, "holds_mamba": False}
        # Later releases read them from `kv`.
        request = SimpleNamespace(rid=str(step), kv=SimpleNamespace(**state_slot), **state_slot)
        match = tree.match_prefix(MatchPrefixParams(key=key))
        request.mamba_host_hit_length = STATES_ON_HOST.value(match, 0)
        if match.host_hit_length or request.mamba_host_hit_length:
            self.num_loaded += match.host_hit_length
            request.last_node = match.last_device_node
            request.swa_host_hit_length = 0
            tree.init_load_back(
                InitLoadBackParams(match.best_match_node, match.host_hit_length, req=request)
            )
            match = tree.match_prefix(MatchPrefixParams(key=key))
        node = match.last_device_node
        # Held until the request ends, or making room could evict the prefix that it reads.
        lock = tree.inc_lock_ref(node)
        # Slots of the prefix that is on the device now; the rest of the prompt gets new ones.
        old = tree.path_device_indices(node) if SLOTS_OF_PATH.of(tree) else match.device_indices
        slots = torch.cat(
            [old, self._given(self._alloc, num_pages * PAGE - len(old), "num_tokens")]
        )
        pages = list(zip((slots[::PAGE] // PAGE).tolist(), range(num_pages), strict=True))
        num_old = len(old) // PAGE
        state: Any = None
        states: tuple[Rows, Rows] = ([], [])
        if self._has_states:
            state = self._given(self._rows.mamba_allocator, 1, "mamba_num")
            component = next(one for one in tree.components if one.name == "MAMBA")
            kept = tree.tree_core.get_component_device_value(node, component)
            read = [slot for slot in (kept, request.kv.mamba_pool_idx) if slot is not None]
            states = [(int(slot), num_old) for slot in read], [(int(state), num_pages)]
        # The model waits for each layer's load by this counter. Without it a layer is read too
        # early.
        tree.cache_controller.layer_done_counter.set_consumer(tree.ready_to_load_host_cache())
        self._forward(f"request {step}", number, (pages[:num_old], pages[num_old:]), states)
        self._device.streams.synchronize(self._device.streams.record(self._device.current))
        tree.insert(InsertParams(key=key, value=slots, mamba_value=state, prev_prefix_len=len(old)))
        tree.dec_lock_ref(node, *([lock.to_dec_params()] if PARAMETERS_OF_UNLOCK.of(lock) else []))
        if request.kv.mamba_pool_idx is not None:
            self._rows.mamba_allocator.free(request.kv.mamba_pool_idx[None])
        tree.check_hicache_events()
        self._device.streams.progress(6)

    def _given(self, allocator: Any, count: int, room: str) -> Tensor:
        """Slots [count] of an allocator, when the cache has made room."""

        def lacking() -> EvictParams:
            return EvictParams(**{room: max(0, count - allocator.available_size())})

        make_room(self._tree, self._device, lacking)
        slots: Tensor = allocator.alloc(count)
        return slots

    def _forward(
        self, title: str, number: int, pages: tuple[Rows, Rows], states: tuple[Rows, Rows]
    ) -> None:
        """Launch each layer: compare what it reads, and write the owners of what is new."""
        for name, group, layer, memory in self._memory():
            sides = states if group == "state" else pages
            old, new = (
                [(row, wanted(group, layer, number, place, memory)) for row, place in side]
                for side in sides
            )
            spans = [[(name, row, 0, memory.shape[1]) for row, _ in side] for side in sides]
            run = partial(self._run, f"{title} for the {name}", memory, old, new, spans[0])
            self._device.streams.launch(self._device.current, f"{title} {name}", run, *spans)

    def _run(self, reader: str, memory: Tensor, old: Any, new: Any, spans: Any) -> None:
        for (row, owners), span in zip(old, spans, strict=True):
            self.landed.compare(
                memory[row].view(owners.shape), owners, owners.shape[1], span, reader
            )
        for row, owners in new:
            memory[row] = owners.flatten()


def _as_rows(group: str, layer: int, memory: Tensor) -> tuple[str, str, int, Tensor]:
    # One row more: SGLang's pools keep number 0 for writes of padding.
    rows = memory.view((NUM_STATES if group == "state" else NUM_PAGES) + 1, -1).view(torch.uint8)
    return f"{group} of layer {layer}", group, layer, rows


def prompt(number: int, num_pages: int) -> list[int]:
    """The tokens of a request. Some begin as another one."""
    return [1000 * owner(number, token // PAGE) + token for token in range(num_pages * PAGE)]


def wanted(group: str, layer: int, number: int, place: int, memory: Tensor) -> Tensor:
    """The records [n, bytes] uint8 of a row of memory [rows, bytes]: of PAGE latents, a page of
    index keys, or a state.

    Sentinels of index keys and states count pages. A state is that of the `place` pages before it.
    """
    if group == "latent":
        of = owner(number, place)
        num_tokens = (place + 1) * PAGE
        return owner_records(group, layer, of, num_tokens, TOKEN_BYTES)[place * PAGE :]
    of = owner(number, place - 1 if group == "state" else place)
    return owner_records(group, layer, of, place + 1, memory.shape[1])[place:]


def run(poison: Poison, params: SglangHostParams) -> Run:
    """Serve the requests in several seeded orders. If two accesses have no order, try both."""
    found = in_orders(partial(_served, params), poison.seed, NUM_SCHEDULES, MOST_SEARCHED)
    return Run(poison.pattern, list(found))


def _served(
    params: SglangHostParams, seed: int, swapped: tuple[str, str] | None, order: str
) -> Moved:
    device = Device(seed, swapped)
    with in_place(device):
        serving = _server(device, params)
        for step, (number, num_pages) in enumerate(REQUESTS):
            serving.serve(step, number, num_pages)
            # What a server does after it has read wrong bytes is no news.
            if serving.landed.misplaced:
                break
        device.streams.finish()
    # A run in which nothing was evicted and loaded again has judged nothing.
    if not serving.num_loaded:
        raise RuntimeError("no prefix came back from the host")
    return Moved.of(serving.landed, device.streams, order)


def _server(device: Device, params: SglangHostParams) -> HiCacheServer | WindowServer:
    """A server of the model that the case names."""
    options = ARGUMENTS["server"] | ARGUMENTS["backends"][params.hicache]
    if params.hicache != "windows":
        return HiCacheServer(device, options, has_states=params.hicache == "states")
    if not ALLOCATOR_OF_WINDOWS.is_module():
        raise Refused("this release brings back no windows from the host")
    # Here, as older releases do not have what it imports.
    from mla_harness_sglang.host.hicache_windows import WindowServer

    return WindowServer(device, options)
