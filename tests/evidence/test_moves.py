from __future__ import annotations

import pytest

from harness.evidence.moves import Moved, landed, ordered
from harness.evidence.records import Run
from harness.memory.moves.checks import Misplaced
from harness.memory.moves.streams import Launch, Race


def test_bytes_of_their_owners_in_an_order_are_silent(evidence):
    found = evidence(Run("nan", [Moved(512, 40, [], []), Moved(512, 41, [], [])]))
    assert landed(found).findings == [] and landed(found).looked_at == 1024
    assert ordered(found).findings == [] and ordered(found).looked_at == 81


@pytest.mark.parametrize("site", ["move.unsent", "move.foreign", "move.late"])
def test_wrong_bytes_fire_with_their_site_and_the_order_of_the_run(evidence, site, approved):
    wrong = Misplaced(
        site, "latent of layer 1", "block 3, byte 7", "step 4, request 1 reads another token"
    )
    (finding,) = landed(evidence(Run("nan", [Moved(512, 0, [wrong], [], "schedule 2")]))).findings
    assert (finding.oracle, finding.site, finding.where) == ("landed", site, "block 3, byte 7")
    assert "schedule 2" in finding.message
    approved(finding.message)


def test_two_accesses_without_an_order_fire_although_every_byte_is_right(evidence, approved):
    race = Race(
        Launch("step 1", "compute"),
        Launch("store 0", "store"),
        ("cache", 3, 0, 16),
        "write and read",
    )
    found = evidence(Run("nan", [Moved(512, 9, [], [race], "schedule 0")]))
    (finding,) = ordered(found).findings
    assert landed(found).findings == []
    assert finding.where.startswith("block 3")
    approved(finding.message)


def test_nothing_moved_is_nothing_looked_at(evidence):
    assert landed(evidence(Run("nan"))).looked_at == ordered(evidence(Run("nan"))).looked_at == 0
