"""A host tier: preempted requests and finished prefixes are stored in host memory and loaded when
they are needed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from harness.core.move_params import MoveParams
from harness.core.registry import Registry
from harness.core.seams import seam
from harness.engine.moves.copies import lengths, moved_regions, page_copies
from harness.engine.moves.layout import TABLES, Memory, Region, Tables, memory_of
from harness.engine.moves.server import MovedRequest, MoveServer
from harness.engine.schedule.block_pool import BlockPool
from harness.memory.moves.checks import Landed
from harness.memory.moves.streams import Event, Streams
from harness.memory.moves.transport import Piece

NUM_HOST_BLOCKS = 96
PROGRESS = 6
"""The most operations that run between two steps."""
STORE = "store"
LOAD = "load"


@seam("move.store-before-write")
def store_waits(server: MoveServer) -> list[Event]:
    """What a store waits for: the model's stream writes the blocks (vllm-project/vllm#45704)."""
    return [server.streams.record(server.compute)]


@seam("move.load-over-readers")
def load_waits(server: MoveServer) -> list[Event]:
    """What a load waits for: the model's stream may still read the blocks for their last owner
    (vllm-project/vllm#47282).
    """
    return [server.streams.record(server.compute)]


@seam("move.host-rows-for-index")
def device_row(region: Region, device: int, host: int) -> int:
    """The block of the device that a load writes, for every group (sgl-project/sglang#31901)."""
    return device


@seam("move.index-before-arrival")
def awaited(ready: dict[tuple[int, str], Event]) -> dict[tuple[int, str], Event]:
    """The events that a step waits for, by layer and group: index keys arrive like pages
    (sgl-project/sglang#22811).
    """
    return ready


@dataclass(slots=True)
class Stored:
    """A request's blocks on the host, and the event after which they are there."""

    tables: Tables
    num_tokens: int
    event: Event


@dataclass(slots=True)
class HostTier:
    """Serves the requests of a case on one engine with too few blocks for all of them at once."""

    params: MoveParams
    streams: Streams
    landed: Landed
    server: MoveServer = field(init=False)
    host: list[Memory] = field(init=False)
    pool: BlockPool = field(init=False)
    running: list[MovedRequest] = field(default_factory=list)
    num_stored: int = 0
    _stored: dict[int, Stored] = field(default_factory=dict)
    _leaving: list[tuple[Event, MovedRequest]] = field(default_factory=list)
    _loaded: list[tuple[Event, Tables]] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks = self.params.tensor_parallel
        self.server = MoveServer(self.params, "engine", self.streams, self.landed, ranks)
        self.host = [
            memory_of(self.params, "host", rank, ranks, NUM_HOST_BLOCKS) for rank in range(ranks)
        ]
        # A block that was freed is given away next, so a copy that comes late meets a new owner
        # soonest.
        self.pool = BlockPool(NUM_HOST_BLOCKS, "lifo")

    @property
    def servers(self) -> list[MoveServer]:
        return [self.server]

    def run(self) -> None:
        waiting = deque(requests_of(self.params))
        while waiting or self.running:
            self._settle()
            # First the running requests: one that was preempted for them must not take the blocks
            # back.
            plan = self._plan(waiting)
            if plan:
                self.server.step(plan)
            elif self._leaving:
                # Nothing can run until a store ends and gives blocks back, so the host waits for
                # one.
                self.streams.synchronize(self._leaving[0][0])
            for request in [request for request in self.running if request.is_finished]:
                self.running.remove(request)
                self._finish(request)
            self._admit(waiting)
            # Copies move on a little in each step, so that some are late, as on a device.
            self.streams.progress(PROGRESS)
        self.streams.finish()

    def waits(self, stream: str) -> list[Event]:
        """What copies on `stream` (STORE or LOAD) wait for, before any of them is launched."""
        return (store_waits if stream == STORE else load_waits)(self.server)

    def copies(
        self, target: Region, source: Region, rows: tuple[int, int], length: int, used: int
    ) -> Iterable[Piece]:
        """The copies of one block of a region, from row `rows[0]` of `source` to row `rows[1]` of
        `target`.

        `length` are the bytes of the block, `used` its computed tokens.
        """
        return page_copies(target, source, rows, length, used, self.params.unit)

    def _settle(self) -> None:
        for event, request in [one for one in self._leaving if self.streams.is_done(one[0])]:
            self._leaving.remove((event, request))
            self.server.free(request)
        for loaded in [one for one in self._loaded if self.streams.is_done(one[0])]:
            self._loaded.remove(loaded)
            self.pool.free(row for rows in loaded[1].values() for row in rows if row is not None)

    def _admit(self, waiting: deque[MovedRequest]) -> None:
        while waiting:
            request = waiting[0]
            is_prefix = request.num_shared > 0 and request.num_computed == 0
            stored = self._stored.get(0 if is_prefix else request.number)
            leaves = any(request is one for _, one in self._leaving)
            if (
                leaves
                or (is_prefix and stored is None)
                or (stored and not self.streams.is_done(stored.event))
            ):
                return
            # One token more than the next chunk: or a request would be preempted as soon as it is
            # admitted.
            first = min(self.params.chunk, request.num_prompt)
            if not self.server.fits(
                request, max(stored.num_tokens if stored else 0, request.num_computed, first) + 1
            ):
                return
            self.running.append(waiting.popleft())
            if stored is not None:
                self._load(request, stored, is_prefix)

    def _plan(self, waiting: deque[MovedRequest]) -> list[tuple[MovedRequest, int]]:
        """The requests of a step with their new tokens.

        Without blocks for one, the latest request is preempted.
        """
        plan: list[tuple[MovedRequest, int]] = []
        needed = 0
        for request in list(self.running):
            if request not in self.running:
                continue
            left = request.num_prompt - request.num_computed
            count = min(left, self.params.chunk) if left > 0 else 1
            needed += sum(self.server.lacks(request, request.num_computed + count).values())
            if needed <= self.server.pool.num_free_blocks:
                plan.append((request, count))
            elif not self._leaving:
                # The latest, so that the oldest request always goes on and the run ends.
                victim = self.running.pop()
                waiting.appendleft(victim)
                self._preempt(victim)
                break
        return [(request, count) for request, count in plan if request in self.running]

    def _preempt(self, request: MovedRequest) -> None:
        if not request.num_computed:
            self.server.free(request)
            return
        self._stored[request.number] = stored = self._store(request, request.num_computed)
        # The blocks stay until they are copied.
        self._leaving.append((stored.event, request))

    def _finish(self, request: MovedRequest) -> None:
        size = self.params.block_size
        full = self.params.shared_prefix // size * size
        # Only this request has a prefix that another one begins with.
        if request.number == 0 and full:
            self._stored[0] = stored = self._store(request, full)
            self._leaving.append((stored.event, request))
        else:
            self.server.free(request)

    def _store(self, request: MovedRequest, num_tokens: int) -> Stored:
        for event in (*self.waits(STORE), *request.ready.values()):
            self.streams.wait(STORE, event)
        # The store waits for what still arrives, so that it copies nothing that is not there.
        request.ready = {}
        size = -(-num_tokens // self.params.block_size)
        tables = {
            name: rows[: 1 if name == "state" else size] for name, rows in request.tables.items()
        }
        host = {
            name: [None if row is None else self.pool.allocate(1)[0] for row in rows]
            for name, rows in tables.items()
        }
        name = f"store {self.num_stored} of request {request.number}"
        self.num_stored += 1
        ends = (self.server.ranks, self.host)
        for layer in range(self.params.num_layers):
            parts = list(self._copies(ends, (tables, host), (layer, ""), num_tokens))
            self._launch(STORE, f"{name} layer {layer}", parts)
        return Stored(host, num_tokens, self.streams.record(STORE))

    def _load(self, request: MovedRequest, stored: Stored, is_prefix: bool) -> None:
        for event in self.waits(LOAD):
            self.streams.wait(LOAD, event)
        request.num_computed = stored.num_tokens
        self.server.give(request, stored.num_tokens, LOAD)
        ready: dict[tuple[int, str], Event] = {}
        ends = (self.host, self.server.ranks)
        tables = (stored.tables, request.tables)
        # Layer by layer with an event each: the model starts on the first layers while later ones
        # still come.
        for layer in range(self.params.num_layers):
            for group in self.params.groups:
                parts = list(self._copies(ends, tables, (layer, group), stored.num_tokens))
                self._launch(LOAD, f"load of request {request.number} layer {layer} {group}", parts)
                ready[layer, group] = self.streams.record(LOAD)
        request.ready = awaited(ready)
        if not is_prefix:
            del self._stored[request.number]
            self._loaded.append((self.streams.record(LOAD), stored.tables))

    def _copies(
        self,
        ends: tuple[list[Memory], list[Memory]],
        tables: tuple[Tables, Tables],
        which: tuple[int, str],
        count: int,
    ) -> Iterator[Piece]:
        """The copies of `count` tokens of one layer, and of one group of it if `which` names one,
        on all ranks.

        `ends` are the memories to read and to write, `tables` the blocks of the request there.
        """
        layer, group = which
        given, taken = tables
        for source, target in zip(*ends, strict=True):
            regions = [region for region in moved_regions(source.regions) if region.layer == layer]
            for region, length in zip(regions, lengths(regions), strict=True):
                if group and region.group != group:
                    continue
                other = next(
                    one
                    for one in target.regions
                    if (one.group, one.layer) == (region.group, region.layer)
                )
                table = TABLES[region.group]
                for page, (first, second) in enumerate(
                    zip(given[table], taken[table], strict=False)
                ):
                    if first is not None and second is not None:
                        row = device_row(other, second, first) if ends[0] is self.host else second
                        used = count - page * self.params.block_size
                        yield from self.copies(other, region, (first, row), length, used)

    def _launch(self, stream: str, name: str, parts: list[Piece]) -> None:
        def run() -> None:
            for part in parts:
                part.copy()

        reads = [span for part in parts for span in part.reads]
        self.streams.launch(
            stream, name, run, reads, [span for part in parts for span in part.writes]
        )


@dataclass(frozen=True, slots=True)
class Connector:
    """A way to store and load for a host tier, chosen by the `connector` of a case."""

    name: str
    summary: str
    tier: type[HostTier]


CONNECTORS: Registry[Connector] = Registry(
    "connector", (Connector("own", "the tier of this module", HostTier),)
)


def connector(name: str) -> Callable[[type[HostTier]], type[HostTier]]:
    """Register a subclass of HostTier, for `connector: NAME` of a case with `move: host`."""

    def register(kind: type[HostTier]) -> type[HostTier]:
        CONNECTORS.add(Connector(name, (kind.__doc__ or "").partition("\n")[0], kind))
        return kind

    return register


def requests_of(params: MoveParams) -> list[MovedRequest]:
    """The requests of a case. The last one begins with a prefix of the first."""
    made = [
        MovedRequest(number, prompt, prompt + count)
        for number, (prompt, count) in enumerate(params.requests)
    ]
    made[-1].num_shared = params.shared_prefix // params.block_size * params.block_size
    return made
