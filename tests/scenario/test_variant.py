from __future__ import annotations

import pytest

from harness.core.cases import Case, PoisonPlan
from harness.core.errors import InputError
from harness.scenario import variant
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

DECODE = "decode-kernel[kernel=tiled,kv=bf16,planned=planned]"


@pytest.fixture(scope="module")
def known():
    return load_scenarios(None)


def one(known, identity: str) -> Case:
    (case,) = select(known, [identity])
    return case


def test_an_id_with_changes_selects_the_case_with_these_values(known):
    case = one(
        known, f"{DECODE}@seq_lens=[0,7],num_heads=2,sites=[kv.tail],patterns=[nan],strict=true"
    )
    assert (case.params.seq_lens, case.params.num_heads) == ((0, 7), 2)
    assert case.poison == PoisonPlan(patterns=("nan",), sites=("kv.tail",), strict=True)
    assert case.params.kv == "bf16"
    assert case.scenario == "decode-kernel"


def test_inputs_are_drawn_from_the_seed_of_the_case_before_the_mark(known):
    assert one(known, f"{DECODE}@num_heads=2").seed == one(known, DECODE).seed


def test_the_id_of_a_variant_names_it_again(known):
    case = one(known, f"{DECODE}@num_heads=2,seq_lens=[3]")
    assert one(known, case.id) == case


def test_a_variant_of_a_variant_says_all_that_differs(known):
    first = one(known, f"{DECODE}@num_heads=2")
    second = variant.vary(first, first.params.model_copy(update={"seq_lens": (9,)}), first.poison)
    assert second.id == f"{DECODE}@seq_lens=[9],num_heads=2"
    assert one(known, second.id) == second


def test_values_of_engine_cases_and_drawn_ones_are_written_and_read_alike(known):
    engine = one(
        known,
        "mixed-context[kv=bf16,context_kernel=minus-inf,context_chunk=32]@requests=[[5,1],[70,2]]",
    )
    assert engine.params.requests == ((5, 1), (70, 2))
    drawn = one(known, "fuzz[op=write_kv,seed=7]@sites=[]")
    assert drawn.poison.sites == ()


def test_an_oracle_that_would_see_nothing_is_left_out(known):
    assert "non_interference" in one(known, DECODE).oracles
    assert "non_interference" not in one(known, f"{DECODE}@patterns=[nan]").oracles


def test_a_change_that_a_case_cannot_have_is_refused_in_one_line(known, approved):
    for changes in [
        "seq_len=[1]",
        "num_heads=0",
        "num_heads",
        "num_heads=1,num_heads=2",
        "num_heads=[1",
        "seq_lens=[]",
        "query_len=4",
        "sites=kv.tail",
        "sites=[kv.tai]",
        "patterns=[]",
        "strict=1",
        "seq_lens=" + "[" * 3000,
        "num_heads=!!python/object/apply:os.getcwd []",
    ]:
        with pytest.raises(InputError) as refused:
            select(known, [f"{DECODE}@{changes}"])
        told = str(refused.value)
        assert "\n" not in told
        approved(told.replace(changes, "CHANGES") if len(changes) > 100 else told, changes[:60])


def test_a_whole_scenario_has_no_variants(known, approved):
    with approved.raises(InputError):
        select(known, ["decode-kernel@num_heads=1"])


def test_an_unknown_case_before_the_mark_gets_the_usual_hint(known):
    with pytest.raises(InputError, match="did you mean"):
        select(known, ["decode-kernel[kernel=tiled,kv=bf17]@num_heads=1"])
