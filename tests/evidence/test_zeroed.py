from __future__ import annotations

from harness.evidence.records import Run
from harness.evidence.zeroed import ZeroedBlock
from harness.evidence.zeroed import zeroed as judge


def test_blocks_that_hold_zeros_are_silent(evidence):
    judgement = judge(evidence(Run("nan", [ZeroedBlock(0, 3, 512, 0), ZeroedBlock(1, 4, 512, 0)])))
    assert judgement.findings == [] and judgement.looked_at == 1024


def test_a_listed_block_with_anything_in_it_fires_and_blames_new_blocks(evidence, approved):
    findings = judge(
        evidence(Run("nan", [ZeroedBlock(0, 3, 512, 0), ZeroedBlock(2, 4, 512, 9)]))
    ).findings
    assert len(findings) == 1 and findings[0].site == "kv.new"
    approved(findings[0].message)


def test_nothing_listed_is_nothing_looked_at(evidence):
    assert judge(evidence(Run("nan"))).looked_at == 0
