"""Sentinels with an owner, streams with an order, and the transport, each by itself."""

from __future__ import annotations

import pytest
import torch

from harness.memory.moves.checks import Landed
from harness.memory.moves.owners import GROUPS, UNSENT_TOKEN, RecordOwner, found_at, records, unsent
from harness.memory.moves.streams import Streams, orders_to_try
from harness.memory.moves.transport import Piece, Transport

PLACE = ("cache", 3, 0, 64)


def test_a_word_names_its_owner_wherever_it_lands():
    found = records(GROUPS.index("index"), 5, 2, 7, 40, 20)
    assert found.shape == (40, 20)
    assert found_at(found[33], 9) == RecordOwner(GROUPS.index("index"), 5, 2, 33, 7, 1)
    assert found_at(found[33], 17) is None, "the last word of a record of 20 bytes is cut"


def test_every_word_of_every_owner_is_another():
    owners = [
        (group, layer, rank, generation)
        for group in (0, 4)
        for layer in (0, 3)
        for rank in (0, 1)
        for generation in (0, 9)
    ]
    words = torch.cat(
        [records(*owner, 12, 64).contiguous().view(torch.int64).flatten() for owner in owners]
    )
    assert len(words.unique()) == len(words) == 16 * 12 * 8


def test_what_does_not_fit_into_a_word_is_refused():
    with pytest.raises(ValueError, match="does not fit"):
        records(0, 200, 0, 0, 4, 8)


@pytest.mark.parametrize(
    ("spoil", "site"),
    [
        (lambda found: found[1].copy_(unsent(16)), "move.unsent"),
        (lambda found: found[1].copy_(records(0, 1, 0, 0, 2, 16)[1]), "move.foreign"),
        (lambda found: found[1, 3].bitwise_not_(), "move.foreign"),
    ],
)
def test_a_wrong_byte_is_found_with_its_site(spoil, site):
    landed, wanted = Landed(), records(0, 0, 0, 0, 4, 16)
    found = wanted.clone()
    landed.compare(found, wanted, 16, PLACE, "step 1")
    assert landed.misplaced == [] and landed.num_bytes == 64
    spoil(found)
    landed.compare(found, wanted, 16, PLACE, "step 2")
    (wrong,) = landed.misplaced
    assert (
        wrong.site == site
        and wrong.where.startswith("block 3, byte ")
        and "step 2" in wrong.message
    )


def test_a_byte_that_a_former_owner_wrote_is_late(approved):
    landed, wanted = Landed(), records(0, 0, 0, 0, 2, 16)
    landed.compare(
        records(0, 0, 0, 5, 2, 16), wanted, 16, PLACE, "step 2", lambda byte: f"copy of byte {byte}"
    )
    assert landed.misplaced[0].site == "move.late"
    approved(landed.misplaced[0].message)


def test_memory_that_no_move_may_touch_is_compared(approved):
    landed, before = Landed(), torch.zeros(2, 8, dtype=torch.uint8)
    after = before.clone()
    landed.untouched("padding", before, after)
    assert landed.misplaced == []
    after[1, 4] = 9
    landed.untouched("padding", before, after)
    assert landed.misplaced[0].site == "move.foreign"
    approved(landed.misplaced[0].where)


def test_unsent_memory_is_no_tokens():
    owner = found_at(unsent(16), 8)
    assert owner is not None and owner.token == UNSENT_TOKEN and "nothing was moved" in str(owner)


def writer_and_reader(streams: Streams, is_ordered: bool) -> list[str]:
    ran: list[str] = []
    streams.launch("compute", "write", lambda: ran.append("write"), writes=[("cache", 1, 0, 8)])
    if is_ordered:
        streams.wait("store", streams.record("compute"))
    streams.launch("store", "read", lambda: ran.append("read"), reads=[("cache", 1, 4, 12)])
    streams.finish()
    return ran


@pytest.mark.parametrize("seed", range(20))
def test_an_event_orders_every_schedule(seed):
    streams = Streams(seed)
    assert writer_and_reader(streams, True) == ["write", "read"]
    assert streams.races == [] and streams.num_compared == 1


def test_without_an_event_a_race_is_found_in_every_schedule_lucky_or_not():
    orders = set()
    for seed in range(20):
        streams = Streams(seed)
        orders.add(tuple(writer_and_reader(streams, False)))
        (race,) = streams.races
        assert (race.first.name, race.second.name, race.how) == ("write", "read", "write and read")
    assert len(orders) == 2


def test_the_search_runs_a_race_both_ways():
    streams = Streams(0)
    writer_and_reader(streams, False)
    ran = {
        pair: tuple(writer_and_reader(Streams(0, pair), False))
        for pair in orders_to_try(streams.races)
    }
    assert ran == {("read", "write"): ("read", "write"), ("write", "read"): ("write", "read")}


def test_bytes_beside_one_another_are_no_race():
    streams = Streams(0)
    streams.launch("a", "one", writes=[("cache", 1, 0, 8)])
    streams.launch("b", "other", writes=[("cache", 1, 8, 16), ("cache", 2, 0, 8)])
    assert streams.races == [] and streams.num_compared == 0


def test_the_host_orders_what_it_launches_after_it_waited():
    streams = Streams(3)
    streams.launch("a", "one", writes=[("cache", 1, 0, 8)])
    streams.synchronize(streams.record("a"))
    streams.launch("b", "other", writes=[("cache", 1, 0, 8)])
    assert streams.races == []
    writer = streams.last_writer("cache", 1, 5)
    assert writer is not None and writer.name == "one"


def test_a_stream_goes_on_behind_an_event_of_another():
    streams = Streams(0)
    streams.launch("a", "one")
    event = streams.record("a")
    streams.launch("a", "two")
    streams.wait("b", event)
    streams.launch("b", "three")
    streams.finish()
    assert streams.is_done(streams.record("b"))


def pieces(source: torch.Tensor, target: torch.Tensor) -> list[Piece]:
    return [
        Piece(source[n : n + 1], target[n : n + 1], (("source", n, 0, 1),), (("target", n, 0, 1),))
        for n in range(len(source))
    ]


def test_a_transfer_lands_whole_in_other_orders():
    orders = set()
    for seed in range(10):
        streams, target = Streams(seed), torch.zeros(6, dtype=torch.uint8)
        transport = Transport(streams)
        transfer = transport.send("pages", pieces(torch.arange(1, 7, dtype=torch.uint8), target))
        assert transport.status(transfer) == "busy"
        seen = []
        while transport.status(transfer) == "busy":
            streams.progress(1)
            seen.append(tuple(target.tolist()))
        orders.add(tuple(dict.fromkeys(seen)))
        assert target.tolist() == [1, 2, 3, 4, 5, 6] and transport.status(transfer) == "done"
    assert len(orders) > 1


def test_a_failing_transfer_loses_its_second_half_and_says_so():
    streams, target = Streams(1), torch.zeros(6, dtype=torch.uint8)
    transport = Transport(streams, failing=(0,))
    transfer = transport.send("pages", pieces(torch.arange(1, 7, dtype=torch.uint8), target))
    streams.finish()
    assert target.tolist() == [1, 2, 3, 0, 0, 0] and transport.status(transfer) == "failed"


def test_nothing_of_a_cancelled_transfer_lands_later():
    streams, target = Streams(1), torch.zeros(6, dtype=torch.uint8)
    transport = Transport(streams)
    transfer = transport.send("pages", pieces(torch.arange(1, 7, dtype=torch.uint8), target))
    transport.cancel(transfer)
    landed = target.clone()
    streams.launch("compute", "next owner", writes=[("target", 2, 0, 1)])
    streams.finish()
    assert target.equal(landed) and streams.races == []


@pytest.mark.parametrize("waits", [True, False])
def test_the_host_may_change_memory_only_after_it_waited_for_what_reads_it(waits: bool) -> None:
    streams, pinned = Streams(1), ("pinned", 0, 0, 8)
    streams.touch("first list", [pinned])
    streams.launch("a", "copy", reads=[pinned])
    if waits:
        streams.synchronize(streams.record("a"))
    streams.touch("second list", [pinned])
    found = [(race.first.name, race.second.stream, race.how) for race in streams.races]
    assert found == ([] if waits else [("copy", "host", "read and write")])
    assert list(orders_to_try(streams.races)) == []
