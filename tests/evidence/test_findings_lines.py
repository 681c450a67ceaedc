"""A finding of memory also names the lines of code that allocated it."""

from __future__ import annotations

import torch

from harness.core.cases import Case, PoisonPlan
from harness.evidence.facts import Allocated
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Run
from harness.judge.verdict import judge


def test_a_finding_names_the_lines_that_allocated_its_site_or_the_only_site_with_lines() -> None:
    case = Case(
        id="x",
        scenario="x",
        system="kernel",
        op="merge_attn_states",
        params={},
        oracles=("finite",),
        poison=PoisonPlan(),
        seed=0,
    )
    seen = [
        Observed(name, torch.full((2, 3), torch.nan), torch.ones(2, dtype=torch.bool), site=site)
        for name, site in (("out", "context.output"), ("lse", None))
    ]
    line = "mla.py:3 in partial: out = torch.empty(4)"
    known, other = Allocated("context.output", [line]), Allocated("kv.new", ["b.py:1"])
    for allocated, of_lse in (([known], line), ([known, other], "")):
        found = judge(Evidence(case, [Run("zeros", [*seen, *allocated])])).findings
        assert {one.tensor: one.at for one in found} == {"out": line, "lse": of_lse}
