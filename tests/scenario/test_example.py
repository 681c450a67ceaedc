"""The example for authors of kernels: it declares its shapes, and enough cases fit it."""

from __future__ import annotations

from pathlib import Path

import pytest

from harness.judge.run_case import why_not
from harness.kernels.plugins import load_plugin
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.override import KernelOverride
from harness.scenario.selection import select


@pytest.mark.nightly
def test_the_example_of_the_documents_fits_a_hundred_and_fifty_cases() -> None:
    (spec,) = load_plugin(Path(__file__).parents[2] / "docs" / "examples" / "deepseek_decode.py")
    everything = load_scenarios(shipped_directory())
    cases = select(everything, override=KernelOverride(spec.short_name, frozenset({spec.op})))
    on_a_cpu = [case for case in cases if "gpu" not in case.tags]
    runs = [
        case
        for case in on_a_cpu
        if not spec.why_not_params(case.params) and not why_not(case, "cpu", None)
    ]
    assert len(runs) >= 150
