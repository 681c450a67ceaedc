"""LMCache on a CPU: do chunks of its store bring back what the tokens need, of latents and their
sidecar alike?

Groups, memory and block tables are vLLM's. How LMCache sorts layers into groups, the layout of a
stored chunk, the choice of blocks and the copies are LMCache's: those of its server, with its own
operations for a CPU. The harness writes owners, stores chunks, overwrites the blocks, and has the
chunks put into other blocks. `test_releases.py` runs this file with the folders of one LMCache and
one vLLM.
"""

from __future__ import annotations

import importlib
import json
import random
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
from torch import Tensor

from harness.memory.moves.checks import Landed
from harness.memory.moves.owners import unsent
from mla_harness_adapters.releases import Renamed, accepted
from mla_harness_vllm.host.kv_layers import (
    BLOCK,
    HAS_PAGES_OF_STATES,
    layers_of,
    memory_of,
    planned,
)
from mla_harness_vllm.host.kv_moves import Sizes, places, settings

# By name: LMCache is no dependency of the tests.
lmcache_native = importlib.import_module("lmcache.lmcache_native")
kv_layer_groups = importlib.import_module("lmcache.v1.kv_layer_groups")
GROUPS_OF_VLLM = importlib.import_module("lmcache.integration.vllm.kv_cache_groups")
CONTEXTS = importlib.import_module("lmcache.v1.platform.cache_context")
SERVER = "lmcache.v1.multiprocess"
COPIES = Renamed(
    (f"{SERVER}.object_group_transfer", f"{SERVER}.modules.lmcache_driven_transfer")
).module()
STORE, LOAD = lmcache_native.TransferDirection.D2H, lmcache_native.TransferDirection.H2D
CHUNK, NUM_CHUNKS, NUM_BLOCKS = 4 * BLOCK, 5, 64
SEQUENCES, NUM_SCHEDULES, WINDOW = 3, 6, 3 * BLOCK


EXCLUDED = kv_layer_groups.EXCLUDED_ENGINE_GROUP


class Shared:
    """A layer's memory as the server maps it: here it is the engine's own."""

    device_type = "cpu"

    def __init__(self, memory: Tensor) -> None:
        self._memory = memory

    def to_tensor(self) -> Tensor:
        """The memory, of any shape."""
        return self._memory


@dataclass(frozen=True, slots=True)
class Chunk:
    """A stored chunk of one group of objects, [bytes] uint8."""

    raw_tensor: Tensor

    def get_size(self) -> int:
        """Its bytes."""
        return self.raw_tensor.numel()

    def parent(self) -> None:
        """No allocator pins it."""


class Server:
    """LMCache's view of the caches of one engine."""

    def __init__(
        self, sidecar: str, window: int, has_separate_objects: bool, draws: random.Random
    ) -> None:
        self._draws, self._window, self.landed = draws, window, Landed()
        self._layers = layers_of(sidecar, window)
        kv_config = planned(
            settings("", False, "engine", self._layers, Sizes(NUM_BLOCKS)), self._layers
        )
        self._groups = kv_config.kv_cache_groups
        self._memory = memory_of(kv_config)
        typed = {name: self._layers[name].typed(memory) for name, memory in self._memory.items()}
        self._infos = GROUPS_OF_VLLM.create_engine_group_infos_from_vllm(kv_config, typed)
        shared = [Shared(memory) for memory in typed.values()]
        self._context = CONTEXTS.create_cache_context(
            shared, CHUNK, None, self._infos, separate_object_groups=has_separate_objects
        )
        self._objects = range(len(self._context.kv_layer_groups_manager.object_groups))
        self.stored: dict[int, list[list[Chunk]]] = {}

    def tables(self) -> list[list[int]]:
        """New blocks for a sequence, by vLLM's group.

        A state has one at the end of each chunk, else null blocks.
        """
        free = self._draws.sample(
            range(1, NUM_BLOCKS), NUM_CHUNKS * CHUNK // BLOCK * len(self._groups)
        )
        tables = [free[place :: len(self._groups)] for place in range(len(self._groups))]
        states = {name for name, layer in self._layers.items() if layer.group == "state"}
        for table, group in zip(tables, self._groups, strict=True):
            if states & set(group.layer_names):
                table[:] = [
                    block if (at + 1) * BLOCK % CHUNK == 0 else 0 for at, block in enumerate(table)
                ]
        return tables

    def write(self, sequence: int, tables: list[list[int]]) -> None:
        """Compute a sequence: write the owners of its tokens to the blocks."""
        for name, layer, table in self._placed(tables):
            ends = (
                range(CHUNK, NUM_CHUNKS * CHUNK + 1, CHUNK)
                if layer.group == "state"
                else [NUM_CHUNKS * CHUNK]
            )
            for end in ends:
                for (_, block, start, stop), wanted in places(layer, name, sequence, table, 0, end):
                    self._memory[name][block, start:stop] = wanted.flatten()

    def store(self, sequence: int, tables: list[list[int]]) -> None:
        sizes = [
            self._context.get_temp_object_group_buffer(0, place).numel() for place in self._objects
        ]
        self.stored[sequence] = [
            [Chunk(unsent(size).clone()) for _ in range(NUM_CHUNKS)] for size in sizes
        ]
        self._move(self.stored[sequence], tables, STORE, 1, 0)

    def load(self, sequence: int, tables: list[list[int]], num_chunks: int, num_kept: int) -> None:
        """Load chunks into blocks but the first `num_kept` tokens, and compare the tokens that the
        next step reads.
        """
        for memory in self._memory.values():
            memory.copy_(unsent(memory.numel()).view(memory.shape))
        chunks = [stored[:num_chunks] for stored in self.stored[sequence]]
        end = num_chunks * CHUNK
        tables = [table[: end // BLOCK] for table in tables]
        self._move(chunks, tables, LOAD, self._context.max_batch_size, num_kept)
        for name, layer, table in self._placed(tables):
            start = max(num_kept, end + 1 - self._window) if layer.group == "window" else num_kept
            for span, wanted in places(layer, name, sequence, table, start, end):
                found = self._memory[name][span[1], span[2] : span[3]].view(wanted.shape)
                self.landed.compare(
                    found, wanted, wanted.shape[1], span, f"the step after {end} tokens"
                )
            if layer.group in ("latent", "index"):
                for block in table[: num_kept // BLOCK]:
                    kept = self._memory[name][block]
                    self.landed.untouched(
                        f"{name}, block {block}", unsent(kept.numel())[None], kept[None]
                    )

    def _placed(self, tables: list[list[int]]) -> list[tuple[str, Any, list[int]]]:
        pairs = zip(self._groups, tables, strict=True)
        return [
            (name, self._layers[name], table)
            for group, table in pairs
            for name in group.layer_names
        ]

    def _move(
        self, chunks: list[list[Chunk]], tables: list[list[int]], way: Any, batch: int, skipped: int
    ) -> None:
        ids = [list(tables[info.engine_group_id]) for info in self._infos]
        staged = COPIES.downsample_and_stage_block_ids(self._context, ids)
        more = accepted(
            {"transfer_key": "move", "block_ids_host": ids}, COPIES.transfer_kv_per_object_group
        )
        for place in self._objects:
            arguments = (self._context, staged, chunks[place], place, batch, skipped, way)
            COPIES.transfer_kv_per_object_group(*arguments, **more)


def without_index(grouped: Any) -> Any:
    """LMCache's function that groups layers, as if it had forgotten the caches of index keys
    (LMCache/LMCache#5010).
    """

    def forgetting(caches: Any, formats: Any, groups: Any = None) -> Any:
        known = groups or [0] * len(formats)
        left = [
            EXCLUDED if one.dtype == torch.uint8 else group
            for one, group in zip(caches, known, strict=True)
        ]
        return grouped(caches, formats, left)

    return forgetting


def moved(sidecar: str, seed: int) -> Landed:
    """Store sequences and load their prefixes, with one object for a chunk, and with one for each
    kind of layer.
    """
    found = Landed()
    for number in range(NUM_SCHEDULES):
        draws = random.Random(seed + number)
        server = Server(sidecar, WINDOW, number % 2 == 1, draws)
        for sequence in range(SEQUENCES):
            server.write(sequence, tables := server.tables())
            server.store(sequence, tables)
        for sequence in draws.sample(range(SEQUENCES), SEQUENCES):
            num_chunks = draws.randint(1, NUM_CHUNKS)
            server.load(
                sequence, server.tables(), num_chunks, draws.randrange(0, num_chunks * CHUNK, BLOCK)
            )
        found.num_bytes += server.landed.num_bytes
        found.misplaced += server.landed.misplaced
    return found


def main() -> None:
    """Print a JSON object: for each sidecar, and for the injected fault, the bytes read and the
    first wrong read.
    """
    found = {}
    for sidecar in ("", "index", "window", "state"):
        if sidecar == "state" and not HAS_PAGES_OF_STATES:
            # vLLM up to 0.26 gives a list of tensors for a state.
            found[sidecar] = [0, "refused"]
            continue
        landed = moved(sidecar, 0)
        found[sidecar] = [landed.num_bytes, landed.misplaced[0].message if landed.misplaced else ""]
    grouped = mock.patch.object(
        kv_layer_groups,
        "group_layers_by_identity",
        without_index(kv_layer_groups.group_layers_by_identity),
    )
    with grouped:
        landed = moved("index", 0)
    found["without index"] = [
        landed.num_bytes,
        landed.misplaced[0].message if landed.misplaced else "",
    ]
    print(json.dumps(found))


if __name__ == "__main__":
    main()
