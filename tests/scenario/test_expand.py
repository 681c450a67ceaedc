"""Scenarios become cases: ids, seeds, parameters, poison and oracles."""

from __future__ import annotations

from pathlib import Path

from harness.core.catalog import SITES
from harness.ops.merge_attn_states.params import MergeAttnStatesParams
from harness.scenario.expand import LONG, expand, fault_cases
from harness.scenario.load import load_scenario
from harness.scenario.override import KernelOverride
from harness.scenario.point_case import seed_of
from harness.scenario.schema import Scenario


def scenario_of(tmp_path: Path, text: str) -> Scenario:
    path = tmp_path / "x.yaml"
    path.write_text("name: x\nsummary: a scenario\n" + text, encoding="utf-8")
    return load_scenario(path)


def test_case_of_a_kernel_carries_its_op_and_every_parameter(tmp_path: Path) -> None:
    (case,) = expand(
        scenario_of(tmp_path, "system: kernel\nop: merge_attn_states\nparams: {num_tokens: 20}\n")
    )
    assert case.op == "merge_attn_states"
    assert case.params == MergeAttnStatesParams(num_tokens=20, kernel="torch")
    assert case.tags == ("kernel", "merge_attn_states")


def test_a_case_is_named_after_the_kernels_of_its_id_that_its_runs_need(tmp_path: Path) -> None:
    (plain,) = expand(scenario_of(tmp_path, "system: kernel\nop: write_kv\n"))
    (own,) = expand(
        scenario_of(tmp_path, "system: kernel\nop: write_kv\nmatrix: {kernel: [torch]}\n")
    )
    assert (plain.named, own.named) == ((), ("kernel",))
    (mine,) = expand(
        scenario_of(tmp_path, "system: kernel\nop: write_kv\n"),
        override=KernelOverride.named("torch"),
    )
    assert mine.named == ("kernel",)
    text = (
        "system: engine\nparams: {num_experts: 4}\nmatrix: {quantize_kernel: [torch], route_kernel:"
        " [torch]}\n"
    )
    # No activation is quantized, so the first kernel has nothing to do.
    (served,) = expand(scenario_of(tmp_path, text))
    assert served.named == ("route_kernel",)


def test_every_site_is_poisoned_unless_the_scenario_says_which(tmp_path: Path) -> None:
    head = "system: engine\nparams: {layers: [mla]}\n"
    (everything,) = expand(scenario_of(tmp_path, head))
    (some,) = expand(
        scenario_of(tmp_path, head + "poison: {sites: [output, lse], patterns: [inf, zeros]}\n")
    )
    assert everything.poison.sites == tuple(SITES.names())
    assert some.poison.sites == ("output", "lse")
    assert some.poison.patterns == ("inf", "zeros")


def test_oracles_without_evidence_are_left_out(tmp_path: Path) -> None:
    text = (
        "system: engine\nmatrix: {graph: [none, full]}\noracles: [finite, non_interference, replay,"
        " address]\n"
    )
    eager, graphed = expand(scenario_of(tmp_path, text))
    assert eager.oracles == ("finite", "non_interference")
    assert graphed.oracles == ("finite", "non_interference", "replay", "address")
    (single,) = expand(scenario_of(tmp_path, "system: engine\npoison: {patterns: [nan]}\n"))
    assert "non_interference" not in single.oracles


def test_seed_comes_from_the_id_and_the_seed_of_the_run(tmp_path: Path) -> None:
    scenario = scenario_of(tmp_path, "system: engine\nmatrix: {graph: [none, full]}\n")
    first, second = expand(scenario)
    assert first.seed == seed_of("x[graph=none]") != second.seed
    assert expand(scenario, seed=1)[0].seed != first.seed
    assert expand(scenario)[0] == first


def test_fault_is_tried_on_the_point_it_names_or_the_first(tmp_path: Path) -> None:
    text = (
        "system: kernel\nop: merge_attn_states\nmatrix: {num_tokens: [9, 12]}\nfaults:\n"
        "  - {name: merge.ignore-context-count, caught_by: finite}\n"
        "  - {name: merge.empty-lse-finite, caught_by: reference, on: {num_tokens: 12}}\n"
    )
    tried = [(use.name, case.id) for use, case in fault_cases(scenario_of(tmp_path, text))]
    assert tried == [
        ("merge.ignore-context-count", "x[num_tokens=9]"),
        ("merge.empty-lse-finite", "x[num_tokens=12]"),
    ]


def test_points_that_others_cover_are_tagged_long(tmp_path: Path) -> None:
    text = (
        "system: engine\nmatrix: {graph: [none, full], kv: [bf16, fp8_e4m3]}\n"
        "long: [{graph: full, kv: [fp8_e4m3]}]\n"
    )
    cases = expand(scenario_of(tmp_path, text))
    assert [case.id for case in cases if LONG in case.tags] == ["x[graph=full,kv=fp8_e4m3]"]
