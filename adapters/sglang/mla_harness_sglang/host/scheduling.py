"""SGLang's pools, radix cache and batches on a CPU, driven step by step as its scheduler does,
whatever the release.
"""

from __future__ import annotations

import contextlib
from array import array
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.managers.schedule_batch import Req, ScheduleBatch
from sglang.srt.mem_cache import allocator, common
from sglang.srt.mem_cache.base_prefix_cache import InitLoadBackParams
from sglang.srt.mem_cache.cache_init_params import CacheInitParams
from sglang.srt.mem_cache.memory_pool import MLATokenToKVPool, ReqToTokenPool
from sglang.srt.sampling.sampling_params import SamplingParams
from sglang.srt.server_args import ServerArgs, set_global_server_args_for_scheduler
from sglang.srt.speculative.spec_info import SpeculativeAlgorithm
from torch import Tensor
from torch_poison.patterns import Poison

from harness.api import Count
from mla_harness_sglang.free_list import free_pages, slots_of
from mla_harness_sglang.host.tree import tree_of
from mla_harness_sglang.releases import (
    CHECKPOINT,
    CHUNK_MARKS,
    EXTEND_END,
    EXTEND_RANGE,
    FILL_LENGTH,
    GROUPED_PREFILLS,
    HOST_LOAD,
    KEEPS_TOKENS,
    LOCK_RECEIPT,
    OUTPUT_OF_BATCH,
    PREFIX_LENGTH,
    ROW_IN_KV,
    TREE_LOCK,
)

VOCABULARY = 32
RANK = 8
ROPE = 4
WIDTH = RANK + ROPE
MAX_LENGTH = 512
FINISHED = object()
"""Any reason: a request with one has finished."""
MODEL = SimpleNamespace(
    vocab_size=VOCABULARY,
    is_encoder_decoder=False,
    is_multimodal=False,
    is_matryoshka=False,  # read by 0.5.12
    hf_config=SimpleNamespace(),
)


def publish(page_size: int = 1, **more: Any) -> ServerArgs:
    """Give SGLang the arguments of a server, and `more`.

    Without a model's path it resolves none that need a model.
    """
    arguments = ServerArgs(
        model_path="none", page_size=page_size, device="cpu", attention_backend="triton", **more
    )
    set_global_server_args_for_scheduler(arguments)
    return arguments


def allocator_of(page_size: int, num_slots: int, pool: Any = None) -> Any:
    """SGLang's allocator of slots, or of pages."""
    if page_size == 1:
        return allocator.TokenToKVPoolAllocator(num_slots, torch.float32, "cpu", pool, False)
    return allocator.PagedTokenToKVPoolAllocator(
        num_slots, page_size, torch.float32, "cpu", pool, False
    )


def free_slots(alloc: Any) -> Tensor:
    """The slots that the allocator will give away, in the order of its list; one that is in it
    twice is twice here.
    """
    return slots_of(free_pages(alloc), alloc.page_size)


def count_once(free: Tensor, where: str) -> Count:
    """How many free slots [n] there are, if each is counted once."""
    return Count("free slots, each once", len(set(free.tolist())), len(free), where)


class RequestScheduler:
    """What a scheduler does with requests: pools, allocator and radix cache are given to it."""

    def __init__(self, rows: Any, alloc: Any, tree: Any) -> None:
        self.page_size: int = tree.page_size
        self.rows = rows
        self.alloc = alloc
        self.tree = tree

    def request(self, name: str, tokens: list[int], num_answers: int) -> Any:
        sampling = SamplingParams(max_new_tokens=num_answers)
        sampling.normalize(None)
        made = Req(name, "", array("q", tokens), sampling, vocab_size=VOCABULARY)
        # Up to 0.5.12 the answers are a list, and so is the prompt.
        if not isinstance(made.output_ids, array):
            made.origin_input_ids = made.origin_input_ids_unpadded = list(tokens)
        return made

    def admit(self, req: Any, most: int, *, is_first: bool) -> bool:
        """Choose the next tokens of a prompt, as `PrefillAdder` does.

        Returns whether they reach the prompt's end.
        """
        req.init_next_round_input(*([self.tree] if is_first else []))
        if is_first and HOST_LOAD.of(req) and req.needs_host_load_back():
            self._load(req)
        total = len(req.origin_input_ids)
        start = prefix_length(req)
        end = min(total, start + most)
        # The same fact under the names that it had in each release: how far this step goes.
        if EXTEND_RANGE.of(req):
            req.set_extend_range(start, end)
        elif EXTEND_END.of(req):
            req.extend_end = end
        else:
            req.set_extend_input_len(end - start)
            if FILL_LENGTH.of(req):
                req.fill_len = end
            else:
                req.fill_ids = req.fill_ids[:end]
        # A request holds its prefix, or the tree would give the pages away under memory pressure.
        if is_first and TREE_LOCK.of(self.tree):
            req.lock = self.tree.lock(req.last_node)
        elif is_first:
            receipt = self.tree.inc_lock_ref(req.last_node)
            if LOCK_RECEIPT.of(req):
                req.lock_receipt = receipt.to_dec_params()
        for mark in CHUNK_MARKS:
            if mark.of(req):
                # SGLang asks this mark whether the step's token is discarded.
                setattr(req, mark.name, int(end < total))
        return end == total

    def _load(self, req: Any) -> None:
        """Have a prefix come back from the host, as `PrefillAdder` does."""
        loaded, req.last_node = self.tree.init_load_back(
            InitLoadBackParams(req.best_match_node, req.host_hit_length, req=req)
        )
        if PREFIX_LENGTH.of(req):
            req.prefix_len += loaded
        else:
            req.prefix_indices = torch.cat([req.prefix_indices, loaded])
        # What belongs to the tree is not the request's to free.
        _owner_of_slots(req).cache_protected_len = prefix_length(req)

    def extend(self, reqs: list[Any]) -> Any:
        batch = ScheduleBatch.init_new(
            reqs, self.rows, self.alloc, self.tree, MODEL, False, SpeculativeAlgorithm.NONE
        )
        batch.prepare_for_extend()
        return batch

    def forward(self, batch: Any) -> None:
        """Do what a forward pass leaves in the batch. No part reads the tokens."""
        if OUTPUT_OF_BATCH.of(batch):
            batch.output_ids = torch.zeros(len(batch.reqs), dtype=torch.int64)

    @contextlib.contextmanager
    def result(self, *, is_prefill: bool) -> Iterator[None]:
        """Free what a result frees in one group, where SGLang does so."""
        # Within a group freed slots are only listed. Nobody can get them before its end.
        is_grouped = not is_prefill or GROUPED_PREFILLS.of(self.alloc)
        if is_grouped:
            self.alloc.free_group_begin()
        yield
        if is_grouped:
            self.alloc.free_group_end()

    def keep(self, req: Any, *, is_chunked: bool) -> None:
        if CHECKPOINT.of(common):
            common.checkpoint_kv_cache(req, self.tree)
        else:
            common.maybe_cache_unfinished_req(req, self.tree, chunked=is_chunked)

    def release(self, req: Any) -> None:
        keeps = {KEEPS_TOKENS.argument_of(common.release_kv_cache): True}
        common.release_kv_cache(req, self.tree, **keeps)

    def slots_of(self, req: Any, length: int) -> Tensor:
        slots: Tensor = self.rows.req_to_token[row_of(req), :length]
        return slots.long()


class Server(RequestScheduler):
    """The memory of one server."""

    def __init__(
        self, page_size: int, num_slots: int, num_rows: int, rank: int = RANK, rope: int = ROPE
    ) -> None:
        self.arguments = publish(page_size)
        self.num_slots = num_slots
        self.width = rank + rope
        self.pool = MLATokenToKVPool(
            num_slots, page_size, torch.float32, rank, rope, 1, "cpu", False
        )
        rows = ReqToTokenPool(num_rows, MAX_LENGTH, "cpu", False)
        alloc = allocator_of(page_size, num_slots, self.pool)
        cache = CacheInitParams(
            disable=False,
            req_to_token_pool=rows,
            token_to_kv_pool_allocator=alloc,
            page_size=page_size,
        )
        super().__init__(rows, alloc, tree_of(self.arguments, cache))

    @property
    def cache(self) -> Tensor:
        """The one layer of the cache [slots, width]."""
        layer: Tensor = self.pool.kv_buffer[0]
        return layer.view(-1, self.width)


def row_of(req: Any) -> int:
    return int(ROW_IN_KV.value(_owner_of_slots(req)))


def _owner_of_slots(req: Any) -> Any:
    """What has the row and the slots of a request: the request, or its `kv` in later releases."""
    kept: Any = getattr(req, "kv", None)
    return kept if ROW_IN_KV.of(kept) else req


def prefix_length(req: Any) -> int:
    """How many of a request's tokens have their slots before the next extend."""
    return int(req.prefix_len) if PREFIX_LENGTH.of(req) else len(req.prefix_indices)


def fill(poison: Poison, cache: Tensor, slots: Tensor, site: str) -> None:
    """Fill slots [n] of the cache [slots, width] as memory of `site`."""
    cache[slots.long()] = poison.empty(len(slots), cache.shape[1], dtype=cache.dtype, site=site)
