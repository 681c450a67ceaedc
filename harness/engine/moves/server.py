"""An engine without a model: it gives blocks to requests, and its steps write and read the owners
of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from torch import Tensor

from harness.core.move_params import MoveParams
from harness.core.seams import seam
from harness.engine.moves.layout import PAD, TABLES, Memory, Region, Tables, memory_of
from harness.engine.schedule.block_pool import BlockPool
from harness.memory.moves.checks import Landed
from harness.memory.moves.owners import unsent
from harness.memory.moves.streams import Event, Span, Streams


@dataclass(slots=True, eq=False)
class MovedRequest:
    """A request.

    Its tokens are the tokens of sequence `number`, the first `num_shared` of sequence 0.

    `ready` has an event for each layer and group that is on its way.
    """

    number: int
    num_prompt: int
    num_tokens: int
    num_computed: int = 0
    num_shared: int = 0
    tables: Tables = field(default_factory=dict)
    ready: dict[tuple[int, str], Event] = field(default_factory=dict)

    @property
    def is_finished(self) -> bool:
        return self.num_computed >= self.num_tokens

    def generation(self, token: int) -> int:
        return 0 if token < self.num_shared else self.number


@dataclass(slots=True)
class MoveServer:
    """One engine: `ranks` have a cache each, and one pool of blocks for all groups.

    Launches with a number below `given_at[block]` are of former owners of the block.
    """

    params: MoveParams
    name: str
    streams: Streams
    landed: Landed
    num_ranks: int
    num_steps: int = 0
    given_at: dict[int, int] = field(default_factory=dict)
    pool: BlockPool = field(init=False)
    ranks: list[Memory] = field(init=False)
    _lists: dict[int, list[tuple[Tensor, Span]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        count = self.params.num_blocks
        # A block that was freed is given away next, so a copy that comes late meets a new owner
        # soonest.
        self.pool = BlockPool(count, "lifo")
        self.ranks = [
            memory_of(self.params, self.name, rank, self.num_ranks, count)
            for rank in range(self.num_ranks)
        ]

    @property
    def compute(self) -> str:
        return f"{self.name} compute"

    def lacks(self, request: MovedRequest, num_tokens: int) -> dict[str, int]:
        """How many blocks each list of a request lacks for `num_tokens` tokens."""
        pages = -(-num_tokens // self.params.block_size)
        names = dict.fromkeys(TABLES[group] for group in self.params.groups)
        return {
            name: (1 if name == "state" else pages) - len(request.tables.get(name, ()))
            for name in names
        }

    def fits(self, request: MovedRequest, num_tokens: int) -> bool:
        return sum(self.lacks(request, num_tokens).values()) <= self.pool.num_free_blocks

    def give(self, request: MovedRequest, num_tokens: int, stream: str) -> None:
        """Give a request the blocks that it lacks, with no content: they are marked as such on
        `stream`.
        """
        for name, count in self.lacks(request, num_tokens).items():
            first = max(request.num_computed - self.params.window + 1, 0) // self.params.block_size
            rows: list[int | None] = list(self.pool.allocate(count))
            if name == "window" and not request.tables.get(name):
                # A request that is loaded begins behind its window, and never reads the pages
                # before it.
                self.pool.free(row for row in rows[:first] if row is not None)
                rows[:first] = [None] * min(first, len(rows))
            request.tables.setdefault(name, []).extend(rows)
            self._blank(name, [row for row in rows if row is not None], stream)
            self.given_at |= {row: self.streams.num_launched for row in rows if row is not None}

    def _blank(self, table: str, rows: list[int], stream: str) -> None:
        blank = [
            (row, found)
            for memory in self.ranks
            for row in rows
            for found in memory.blank(table, row)
        ]
        parts = [(buffer.data, (buffer.name, row, 0, page)) for row, (buffer, page) in blank]
        if parts:
            place = list_row(len(self._lists))
            # The host writes the list now, and the launch reads it later. A row that is written
            # again before that changes what is marked (vllm-project/vllm#48085).
            listed = [(f"{self.name} pinned lists", place, 0, len(parts))]
            self.streams.touch(f"{self.name} lists new blocks", listed)
            self._lists[place] = parts

            def run() -> None:
                for data, (_, row, start, end) in self._lists[place]:
                    data[row, start:end] = unsent(end)

            name = f"{self.name} marks new blocks"
            self.streams.launch(stream, name, run, listed, [span for _, span in parts])

    def free(self, request: MovedRequest) -> None:
        self.pool.free(row for rows in request.tables.values() for row in rows if row is not None)
        request.tables = {}

    def step(self, running: list[tuple[MovedRequest, int]]) -> None:
        """Compute `count` new tokens of each request, layer by layer, on the stream of the
        model.
        """
        for request, count in running:
            self._evict(request)
            self.give(request, request.num_computed + count, self.compute)
        for layer in range(self.params.num_layers):
            regions = [
                region
                for memory in self.ranks
                for region in memory.regions
                if region.layer == layer
            ]
            pairs = [(region, request, count) for region in regions for request, count in running]
            for region, request, _ in pairs:
                event = request.ready.pop((layer, region.group), None)
                if event is not None:
                    self.streams.wait(self.compute, event)
            self._launch(f"{self.name} step {self.num_steps} layer {layer}", pairs)
        for request, count in running:
            request.num_computed += count
        self.num_steps += 1

    def _launch(self, name: str, pairs: list[tuple[Region, MovedRequest, int]]) -> None:
        work = []
        reads = []
        writes = []
        for region, request, count in pairs:
            end = request.num_computed + count
            old = list(self.places(region, request, 0, request.num_computed))
            new = list(self.places(region, request, request.num_computed, end))
            reads += [span for span, _ in old]
            writes += [span for span, _ in new]
            # A copy: blocks change hands before the launch runs.
            work.append((region, request, old, new, dict(self.given_at)))

        def run() -> None:
            for region, request, old, new, given_at in work:
                for span, wanted in old:
                    self._check(name, region, request, span, wanted, given_at)
                for (_, row, start, stop), wanted in new:
                    region.buffer.data[row, start:stop] = wanted.flatten()

        self.streams.launch(self.compute, name, run, reads, writes)

    def places(
        self, region: Region, request: MovedRequest, start: int, end: int
    ) -> Iterator[tuple[Span, Tensor]]:
        """The bytes of tokens `start` to `end` of a request in a region, block by block, and their
        content.
        """
        if region.group == "state":
            if end:
                row = request.tables["state"][0]
                assert row is not None
                yield (
                    (region.buffer.name, row, 0, region.page_bytes),
                    # Each token writes the state anew, so its bytes name the last one.
                    region.wanted(request.number, end - 1, end),
                )
            return
        if region.group == "window":
            start = max(start, request.num_computed - self.params.window + 1)
        size = self.params.block_size
        for page in range(start // size, -(-end // size)):
            row = request.tables[TABLES[region.group]][page]
            first = max(start, page * size)
            last = min(end, (page + 1) * size)
            assert row is not None
            slots = (
                (first - page * size) * region.token_bytes,
                (last - page * size) * region.token_bytes,
            )
            yield (
                (region.buffer.name, row, *slots),
                # A page is of one sequence, as a shared prefix ends with a page.
                region.wanted(request.generation(first), first, last),
            )

    def _evict(self, request: MovedRequest) -> None:
        rows = request.tables.get("window", [])
        first = max(request.num_computed - self.params.window + 1, 0) // self.params.block_size
        for page, row in enumerate(rows[:first]):
            if row is not None:
                rows[page] = None
                self.pool.free([row])

    def _check(
        self,
        name: str,
        region: Region,
        request: MovedRequest,
        span: Span,
        wanted: Tensor,
        given_at: dict[int, int],
    ) -> None:
        buffer, row, start, stop = span
        found = region.buffer.data[row, start:stop].view(wanted.shape)

        def late(byte: int) -> str:
            writer = self.streams.last_writer(buffer, row, byte)
            # Launched for a former owner of the block, so the copy landed when it was too late.
            return writer.name if writer and writer.number < given_at[row] else ""

        self.landed.compare(
            found, wanted, region.record, span, f"{name}, request {request.number}", late
        )

    def padding(self) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Bytes that no move may touch: padding behind each page, and blocks without an owner for
        the whole run.
        """
        for memory in self.ranks:
            for buffer in memory.buffers:
                page = max(
                    region.page_bytes for region in memory.regions if region.buffer is buffer
                )
                now = buffer.data[:, page:]
                yield f"padding of {buffer.name}", now.new_full(now.shape, PAD), now
                reserved = buffer.data[[0, self.pool.trap_block], :page]
                yield (
                    f"blocks without an owner of {buffer.name}",
                    unsent(page).expand(2, page).clone(),
                    reserved,
                )


@seam("move.list-of-queued-copy")
def list_row(num_lists: int) -> int:
    """The row of pinned memory for the next list of new blocks: one that no queued copy reads
    (vllm-project/vllm#48085).
    """
    return num_lists
