from __future__ import annotations

from harness.evidence.addresses import Binding
from harness.evidence.addresses import address as judge
from harness.evidence.records import Run


def test_inputs_updated_where_they_were_captured_are_silent(evidence):
    run = Run("nan", [Binding(step, "work", "sched_meta", 0x1000, 0x1000) for step in range(3)])
    judgement = judge(evidence(run))
    assert judgement.findings == []
    assert judgement.looked_at == 3


def test_an_input_updated_elsewhere_fires_once_with_a_count(evidence, approved):
    bindings = [
        Binding(step, "work", "sched_meta", 0x1000, 0x1000 + 64 * step) for step in range(4)
    ]
    findings = judge(evidence(Run("nan", bindings))).findings
    assert len(findings) == 1
    assert (findings[0].site, findings[0].tensor, findings[0].where) == (
        "sched_meta",
        "work",
        "step 1",
    )
    approved(findings[0].bits)
    approved(findings[0].message)


def test_no_bindings_are_nothing_looked_at(evidence):
    assert judge(evidence(Run("nan"))).looked_at == 0
