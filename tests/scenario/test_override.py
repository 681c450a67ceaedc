"""`--kernel NAME` replaces the kernel of its op wherever a scenario uses it."""

from __future__ import annotations

import pytest

from harness.core.catalog import KERNELS
from harness.core.engine_params import EngineParams
from harness.core.errors import InputError, UnknownNameError
from harness.core.kernels import KernelSpec
from harness.core.shapes import DEEPSEEK
from harness.core.systems import ENGINE_KERNELS
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.override import KernelOverride
from harness.scenario.selection import select
from tests.transcripts import Approved

SCENARIOS = [s for s in load_scenarios(shipped_directory()) if s.fuzz is None]
MINE = KernelOverride("mine", frozenset({"mla_decode"}))


@pytest.fixture(autouse=True)
def mine() -> None:
    KERNELS.add(KernelSpec("mla_decode", "mine", "a kernel", "nowhere:nothing"))


def test_kernel_is_judged_by_kernel_and_engine_scenarios_alike() -> None:
    cases = select(SCENARIOS, override=MINE)
    assert {case.system for case in cases} == {"kernel", "engine"}
    for case in cases:
        assert (
            case.kernels()["kernel" if case.system == "kernel" else "decode_kernel"]
            == "mla_decode/mine"
        )
        assert case.id.startswith(f"{case.scenario}[kernel=mine")


@pytest.mark.first(3)
@pytest.mark.parametrize("parameter", ENGINE_KERNELS)
def test_of_the_engine_a_kernel_is_judged_by_the_cases_that_call_it(parameter: str) -> None:
    op = ENGINE_KERNELS[parameter]
    if op != "mla_decode":
        KERNELS.add(KernelSpec(op, "mine", "a kernel", "nowhere:nothing"))
    every = [case for case in select(SCENARIOS) if case.system == "engine"]
    found = [
        case
        for case in select(SCENARIOS, override=KernelOverride("mine", frozenset({op})))
        if not case.op
    ]
    assert 0 < len(found) < len(every)
    assert all(parameter not in case.params.idle_kernels() for case in found)
    scenarios = {case.scenario for case in every if parameter not in case.params.idle_kernels()}
    assert scenarios == {case.scenario for case in found}, "no case that calls it is left out"


def test_points_that_differed_only_in_the_kernel_become_one_case() -> None:
    cases = select(SCENARIOS, ["decode-empty-rows"], override=MINE)
    assert [case.id for case in cases] == [
        "decode-empty-rows[kernel=mine,kv=bf16]",
        "decode-empty-rows[kernel=mine,kv=fp8_e4m3]",
    ]


def test_scenarios_of_other_ops_are_left_out(approved: Approved) -> None:
    with approved.raises(InputError):
        select(SCENARIOS, ["merge-kernel"], override=MINE)


def test_case_of_an_override_is_named_by_its_id() -> None:
    wanted = "decode-empty-rows[kernel=mine,kv=bf16]"
    assert [case.id for case in select(SCENARIOS, [wanted], override=MINE)] == [wanted]


def test_a_kernel_of_fixed_sizes_gets_a_variant_of_each_case_that_fits_it() -> None:
    KERNELS.add(
        KernelSpec(
            "mla_decode", "fixed", "a kernel", "nowhere:nothing", kv=("bf16",), shapes=DEEPSEEK
        )
    )
    cases = select(SCENARIOS, override=KernelOverride("fixed", frozenset({"mla_decode"})))
    # An axis of cache types keeps its label, so those cases are skipped with a reason.
    engine = [
        case
        for case in cases
        if case.system == "engine" and case.params_as(EngineParams).kv == "bf16"
    ]
    assert len(engine) > 50 and all("[kernel=fixed,shapes=deepseek" in case.id for case in engine)
    assert {(case.params_as(EngineParams).kv_lora_rank) for case in engine} == {512}
    wanted = engine[0].id
    assert select(
        SCENARIOS, [wanted], override=KernelOverride("fixed", frozenset({"mla_decode"}))
    ) == [engine[0]]


def test_name_of_several_kernels_means_all_of_their_ops() -> None:
    ops = {spec.op for spec in KERNELS if spec.short_name == "torch"}
    assert KernelOverride.named("torch").ops == ops
    assert KernelOverride.named("write_kv/torch").ops == {"write_kv"}


def test_unknown_kernel_is_refused_with_the_nearest_name(approved: Approved) -> None:
    with approved.raises(UnknownNameError):
        KernelOverride.named("tield")
