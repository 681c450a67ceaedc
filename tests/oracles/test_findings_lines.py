"""A finding that names memory also names the lines of code that allocated it."""

from __future__ import annotations

import torch

from harness.core.cases import Case, PoisonPlan
from harness.judge.run_records import Evidence, Observed, Run
from harness.judge.verdict import judge


def test_a_finding_with_a_site_names_the_allocating_lines_and_another_does_not() -> None:
    case = Case(
        id="x", scenario="x", system="kernel", op="merge_attn_states", params={},
        oracles=("finite",), poison=PoisonPlan(), seed=0,
    )  # fmt: skip
    seen = [
        Observed(name, torch.full((2, 3), torch.nan), torch.ones(2, dtype=torch.bool), site=site)
        for name, site in (("out", "context.output"), ("lse", None))
    ]
    lines = {"context.output": ["mla.py:3 in partial: out = torch.empty(4)"]}
    found = judge(Evidence(case, [Run("zeros", observed=seen, allocated=lines)])).findings
    assert {one.tensor: one.at for one in found} == {"out": lines["context.output"][0], "lse": ""}
