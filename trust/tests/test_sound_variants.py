"""Sound variants are right, differ from one another, and are the same on every machine."""

from __future__ import annotations

import pytest
import torch

from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.kernels import KernelSpec
from harness.core.records import Verdict
from harness.core.registry import Registry
from harness.judge.run_case import run_case
from harness.ops.parts.block_formats import FORMATS, decoded_scales, decoded_values
from harness.ops.quantize_blocks import reference as quantize_blocks_reference
from harness.ops.quantize_blocks.kernels.dense import quantize_blocks
from harness.scenario.drawn import control_cases, drawn_case
from harness.scenario.draws import draw
from harness.scenario.load import load_scenarios
from harness.scenario.override import KernelOverride
from trust.sound import code as sound
from trust.sound.kernels import Style, sound_variants

FUZZ = next(scenario for scenario in load_scenarios(None) if scenario.name == "fuzz")


def test_a_seed_stands_for_one_style() -> None:
    assert Style.drawn(3) == Style.drawn(3)
    drawn = [Style.drawn(seed) for seed in range(64)]
    assert len(set(drawn)) > 60
    assert {style.splits for style in drawn} == set(range(1, 9))
    for field in (
        "backwards",
        "reciprocal",
        "bf16_probabilities",
        "bf16_partials",
        "writes_empty",
        "follows_plan",
    ):
        assert {getattr(style, field) for style in drawn} == {True, False}, field


@pytest.mark.parametrize(
    "name", ["sound-", "sound-x", "sound-07", "sound--1", "sound-\u0661", "unsound-1", "torch"]
)
def test_other_names_stand_for_no_variant(name: str) -> None:
    assert sound_variants(name) == ()
    assert f"mla_decode/{name}" not in Registry[KernelSpec]("kernel", (), sound_variants)


def test_a_variant_is_made_when_it_is_named_and_no_list_has_it_before() -> None:
    registry = Registry[KernelSpec]("kernel", (), sound_variants)
    assert len(registry) == 0
    assert registry.get("write_kv/sound-11").op == "write_kv"
    assert len(registry) == len(sound_variants("sound-11")) == 12
    registry.add_family("sound-11")
    assert len(registry) == 12


def test_draws_never_choose_a_variant() -> None:
    KERNELS.add_family("sound-1")
    names = {name for seed in range(60) for name in _kernels(draw(f"names:{seed}").params)}
    assert names and not any(name.startswith("sound-") for name in names)


def _kernels(params: object) -> set[str]:
    return {str(value) for field, value in vars(params).items() if "kernel" in field}


def test_the_id_of_a_control_alone_makes_it_again() -> None:
    made = control_cases(FUZZ, 1, 70)
    *_, case = (each for each in made if each.id.startswith("fuzz[kernel=sound-66,"))
    assert len(made) == 70
    assert drawn_case(FUZZ, case.id) == case
    assert all(name.split("/")[1] == "sound-66" for name in case.kernels().values())
    assert KernelOverride.named("sound-65").short_name == "sound-65"


@pytest.mark.nightly
def test_variants_pass() -> None:
    # The cases are drawn here: a variant is registered when it is drawn, and a test leaves no
    # kernel behind.
    torch.set_num_threads(1)
    cases = [case for case in control_cases(FUZZ, 3, 30) if case.op]
    found = {case.id: run_case(Job(key=case.id, case=case)) for case in cases}
    assert len(found) > 10
    assert {
        name: (one.verdict, one.reason)
        for name, one in found.items()
        if one.verdict is not Verdict.PASS
    } == {}


def test_the_decodes_of_variants_differ_in_their_bits() -> None:
    generator = torch.Generator().manual_seed(0)
    q = torch.randn(2, 1, 4, 48, generator=generator)
    cache = torch.randn(8, 64, 48, generator=generator)
    table, lengths = (
        torch.tensor([[1, 2, 3], [4, 5, 6]], dtype=torch.int32),
        torch.tensor([130, 70], dtype=torch.int32),
    )
    outs = [
        sound.mla_decode(Style.drawn(seed), q, cache, table, lengths, scale=0.2)[0]
        for seed in range(12)
    ]
    assert len({tuple(out.flatten().tolist()) for out in outs}) > 6
    assert all(torch.allclose(out, outs[0], atol=1e-5) for out in outs)


def blocks_of(x: torch.Tensor, style: Style) -> tuple[torch.Tensor, torch.Tensor]:
    offsets = torch.tensor([0, len(x)], dtype=torch.int32)
    values, scales = sound.quantize_blocks(style, x, offsets, block_format="nvfp4")
    return decoded_values(values, FORMATS["nvfp4"]), decoded_scales(scales, FORMATS["nvfp4"])


RECIPROCAL = next(style for style in map(Style.drawn, range(20)) if style.reciprocal)
TIED = torch.tensor([[6 * 0.05859375, 0.146484375] + [0.0] * 14], dtype=torch.bfloat16)
"""The scale is 0.05859375.

Divided by it, the second number is 2.5, in the middle of 2 and 3; times 1 / scale, more.
"""


def test_a_tie_may_be_decided_as_a_reciprocal_decides_it_and_another_number_may_not() -> None:
    offsets = torch.tensor([0, 1], dtype=torch.int32)
    divided, _ = quantize_blocks(TIED, offsets, block_format="nvfp4")
    values, scales = blocks_of(TIED, RECIPROCAL)
    assert decoded_values(divided, FORMATS["nvfp4"])[0, 1] == 2.0 and values[0, 1] == 3.0
    plain = quantize_blocks_reference.expected(TIED, offsets, block_format="nvfp4")
    assert plain.values[0, 1] == 2.0
    followed = quantize_blocks_reference.expected(
        TIED, offsets, block_format="nvfp4", chosen=(values, scales)
    )
    assert followed.values[0, 1] == 3.0
    wrong = values.clone()
    wrong[0, 0], wrong[0, 1] = 4.0, 4.0
    kept = quantize_blocks_reference.expected(
        TIED, offsets, block_format="nvfp4", chosen=(wrong, scales)
    )
    assert kept.values[0, :2].tolist() == [6.0, 2.0]


def test_scales_that_are_powers_of_two_leave_no_choice() -> None:
    x = torch.tensor([[6.0, 2.5] + [0.0] * 30], dtype=torch.bfloat16)
    offsets = torch.tensor([0, 1], dtype=torch.int32)
    plain = quantize_blocks_reference.expected(x, offsets, block_format="mxfp4")
    other = plain.values.clone()
    other[0, 1] = 3.0
    asked = quantize_blocks_reference.expected(
        x, offsets, block_format="mxfp4", chosen=(other, plain.scales)
    )
    assert plain.values[0, 1] == asked.values[0, 1] == 2.0
