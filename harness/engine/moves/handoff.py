"""A prefill engine that computes prompts and hands their pages to a decode engine, over a
transport.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from harness.core.move_params import MoveParams
from harness.core.seams import seam
from harness.engine.moves.copies import (
    lengths,
    moved_regions,
    page_copies,
    shard_copies,
    source_rank,
)
from harness.engine.moves.host import PROGRESS, requests_of
from harness.engine.moves.layout import TABLES, Region
from harness.engine.moves.server import MovedRequest, MoveServer
from harness.memory.moves.checks import Landed
from harness.memory.moves.streams import Streams
from harness.memory.moves.transport import Piece, Status, Transfer, Transport


@seam("move.failed-as-finished")
def has_landed(status: Status) -> bool:
    """Whether a request may be decoded: all its pages are there.

    A failed transfer ends, too (vllm-project/vllm#52234).
    """
    return status == "done"


@seam("move.late-writer")
def abort(transport: Transport, transfer: Transfer) -> None:
    """End a transfer before its pages go to another request (sgl-project/sglang#24527)."""
    transport.cancel(transfer)


@dataclass(slots=True)
class Sending:
    """A request whose pages are on their way, as the prefill engine and as the decode engine have
    it.
    """

    prefilled: MovedRequest
    decoded: MovedRequest
    transfer: Transfer
    polls: int = 0


@dataclass(slots=True)
class Handoff:
    """Serves the requests of a case on two engines."""

    params: MoveParams
    streams: Streams
    landed: Landed
    prefill: MoveServer = field(init=False)
    decode: MoveServer = field(init=False)
    transport: Transport = field(init=False)
    _sending: list[Sending] = field(default_factory=list)

    def __post_init__(self) -> None:
        ranks = self.params.tensor_parallel
        self.prefill = MoveServer(self.params, "prefill", self.streams, self.landed, ranks)
        self.decode = MoveServer(
            self.params, "decode", self.streams, self.landed, self.params.decode_ranks or ranks
        )
        self.transport = Transport(self.streams, self.params.failing)

    @property
    def servers(self) -> list[MoveServer]:
        return [self.prefill, self.decode]

    def run(self) -> None:
        waiting = requests_of(self.params)
        prefilled: list[MovedRequest] = []
        decoding: list[MovedRequest] = []
        while waiting or prefilled or decoding or self._sending:
            if waiting:
                prefilled += self._prefill(waiting)
            for request in list(prefilled):
                if self.decode.fits(request_like(request), request.num_tokens):
                    prefilled.remove(request)
                    self._sending.append(self._send(request))
            decoding += self._arrived()
            # A request decodes only with room to its end, as nothing is preempted here.
            if decoding:
                self.decode.step([(request, 1) for request in decoding])
            for request in [request for request in decoding if request.is_finished]:
                decoding.remove(request)
                self.decode.free(request)
            self.streams.progress(PROGRESS)
        self.streams.finish()

    def _prefill(self, waiting: list[MovedRequest]) -> list[MovedRequest]:
        """Run one chunk of the first prompt. Returns the request if its prompt is computed."""
        request = waiting[0]
        count = min(request.num_prompt - request.num_computed, self.params.chunk)
        if not self.prefill.fits(request, request.num_computed + count):
            return []
        self.prefill.step([(request, count)])
        return [waiting.pop(0)] if request.num_computed == request.num_prompt else []

    def _send(self, prefilled: MovedRequest) -> Sending:
        decoded = request_like(prefilled)
        self.decode.give(decoded, decoded.num_tokens, self.decode.compute)
        return Sending(prefilled, decoded, self._transfer(prefilled, decoded))

    def _transfer(self, prefilled: MovedRequest, decoded: MovedRequest) -> Transfer:
        pieces = [
            piece
            for rank, memory in enumerate(self.decode.ranks)
            for regions in [moved_regions(memory.regions)]
            for region, length in zip(regions, lengths(regions), strict=True)
            for piece in self._copies(region, length, rank, prefilled, decoded)
        ]
        after = [self.streams.record(server.compute) for server in self.servers]
        return self.transport.send(f"pages of request {prefilled.number}", pieces, after)

    def _copies(
        self, region: Region, length: int, rank: int, prefilled: MovedRequest, decoded: MovedRequest
    ) -> Iterator[Piece]:
        sources: dict[int, list[int]] = {}
        for shard in region.shards:
            sources.setdefault(source_rank(region, shard, rank, self.prefill.num_ranks), []).append(
                shard
            )
        table = TABLES[region.group]
        for page, rows in enumerate(
            zip(prefilled.tables[table], decoded.tables[table], strict=False)
        ):
            if rows[0] is None or rows[1] is None:
                continue
            used = prefilled.num_computed - page * self.params.block_size
            for number, shards in sources.items():
                alike = (region.group, region.layer)
                source = next(
                    one
                    for one in self.prefill.ranks[number].regions
                    if (one.group, one.layer) == alike
                )
                # Ranks with as many shards lay out a page alike, so that it is copied as a whole.
                if len(source.shards) == len(region.shards):
                    yield from page_copies(
                        region, source, (rows[0], rows[1]), length, used, self.params.unit
                    )
                else:
                    yield from shard_copies(region, source, (rows[0], rows[1]), shards, used)

    def _arrived(self) -> list[MovedRequest]:
        """The requests that may be decoded now.

        A failed transfer is sent again, an aborted request is forgotten.
        """
        arrived = []
        for sending in list(self._sending):
            sending.polls += 1
            status = self.transport.status(sending.transfer)
            # At the first poll, when pieces of it may still be queued.
            if sending.prefilled.number in self.params.aborted and sending.polls == 1:
                abort(self.transport, sending.transfer)
                self.decode.free(sending.decoded)
            elif status == "busy":
                continue
            elif sending.decoded.tables and has_landed(status):
                arrived.append(sending.decoded)
            elif sending.decoded.tables:
                sending.transfer = self._transfer(sending.prefilled, sending.decoded)
                continue
            # The prefill engine keeps the pages until no copy can read them any more.
            if self.transport.status(sending.transfer) != "busy":
                self._sending.remove(sending)
                self.prefill.free(sending.prefilled)
        return arrived


def request_like(prefilled: MovedRequest) -> MovedRequest:
    """The request as the decode engine gets it: its prompt is computed, and it has no blocks
    yet.
    """
    return replace(prefilled, num_computed=prefilled.num_prompt, tables={}, ready={})
