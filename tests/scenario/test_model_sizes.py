"""The shipped calls reach the sizes of released models: the last class of a number begins before.

DeepSeek V3.2 chooses 2,048 positions and slots, and has rows of 7,168 elements. Kimi K3 chooses 16
of 896 experts.
"""

from __future__ import annotations

import pytest

from harness.core.conditions.table import CHANGES, ENGINE, SPACES
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS, part_of
from harness.scenario.expand import NIGHTLY, expand
from harness.scenario.load import load_scenarios

LIMITS = {s.op: s for s in load_scenarios(None) if "limits" in s.tags}
WITHOUT = {"mla_layer"}
"""Spaces without sizes of models: the weights of one layer of such a size are gigabytes in float64,
and its parts, which are ops, have these sizes.
"""


def test_a_space_that_has_no_sizes_of_models_is_named() -> None:
    kernels = {op for op in SPACES if op not in (CHANGES, ENGINE)}
    assert {op for op in kernels if not any(d.reach for d in SPACES[op].dimensions)} == WITHOUT


@pytest.mark.parametrize("op", [op for op in SPACES if op not in (CHANGES, ENGINE, *WITHOUT)])
def test_a_call_of_a_plain_run_has_each_size_that_a_model_has(op: str) -> None:
    assert NIGHTLY not in LIMITS[op].tags
    wanted = {d.name: d.reach for d in SPACES[op].dimensions if d.reach}
    assert wanted, "a space without a size of models"
    largest = dict.fromkeys(wanted, 0)
    for case in expand(LIMITS[op]):
        params = KERNEL_PARAMS[op].model_validate(case.params)
        made = part_of(op, "inputs:draw")(params, 0)
        row = OPS.get(op)
        names = [*row.positional, *(name for name in row.keywords if hasattr(made, name))]
        for point in SPACES[op].reader(**{name: getattr(made, name) for name in names}):
            for name in wanted:
                if isinstance(found := point.get(name), int):
                    largest[name] = max(largest[name], found)
    assert {name for name, most in largest.items() if most < wanted[name]} == set()
