"""Drawn cases: reproducible from their id alone, legal, and varied."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.draws import draws as draws_of_ops
from harness.core.engine_params import EngineParams
from harness.core.errors import InputError, UnknownNameError
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import PAGE_SIZE
from harness.scenario import draws
from harness.scenario.drawn import drawn_case
from harness.scenario.draws import Draw, draw, draw_sequence
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.override import KernelOverride
from harness.scenario.point_case import seed_of
from harness.scenario.schema import Scenario
from harness.scenario.selection import select
from tests.transcripts import Approved

ROOT = Path(__file__).parents[2]
SEQUENCES, STATES, FUZZ = [s for s in load_scenarios(shipped_directory()) if s.fuzz is not None]
DRAWN = expand(FUZZ, seed=7)


def drawn_params(seeds: int, count: int = 200) -> list[Draw]:
    return [draw(f"{seed}:{number}") for seed in range(seeds) for number in range(count)]


def test_scenario_draws_as_many_cases_as_it_says() -> None:
    assert FUZZ.fuzz is not None
    assert len(DRAWN) == FUZZ.fuzz.examples == 40
    assert len({case.id for case in DRAWN}) == 40


@pytest.mark.parametrize("scenario", [FUZZ, SEQUENCES, STATES], ids=lambda one: one.name)
def test_id_alone_reproduces_its_case(scenario: Scenario) -> None:
    for case in (case for seed in range(4) for case in expand(scenario, seed=seed)):
        assert drawn_case(scenario, case.id) == case
        # Whatever the seed of a run is.
        assert select([scenario], [case.id], seed=99) == [case]


def test_an_id_stands_for_its_case_whatever_is_drawn(monkeypatch: pytest.MonkeyPatch) -> None:
    before = {case.id: case for case in DRAWN}
    monkeypatch.setattr(draws, "draw", lambda seed: pytest.fail("an id draws nothing"))
    for identity, case in before.items():
        assert drawn_case(FUZZ, identity) == case


def test_the_id_has_the_op_the_seed_of_the_inputs_and_what_is_no_default() -> None:
    identity = (
        "fuzz[op=write_kv,seed=52]@num_tokens=3,num_padded=1,patterns=[nan,max],sites=[kv.tail]"
    )
    (case,) = select([FUZZ], [identity])
    assert (case.id, case.op, case.seed) == (
        identity,
        "write_kv",
        seed_of("fuzz[op=write_kv,seed=52]"),
    )
    assert case.params == type(case.params)(num_tokens=3, num_padded=1)
    assert (case.poison.patterns, case.poison.sites) == (("nan", "max"), ("kv.tail",))
    assert drawn_case(FUZZ, "fuzz[op=write_kv,seed=53]").seed != case.seed


def test_a_drawn_case_has_the_oracles_that_its_own_parameters_can_show() -> None:
    plain, graph = (
        drawn_case(FUZZ, f"fuzz[op=mla_decode,seed=1]{more}") for more in ("", "@graph=full")
    )
    assert "replay" in graph.oracles and "replay" not in plain.oracles


def test_parts_of_ids_select_draws_of_a_run() -> None:
    found = select([FUZZ], ["fuzz[op=engine]"], seed=7)
    assert found == [case for case in DRAWN if case.op is None] and found


def test_an_id_with_a_value_that_such_a_case_cannot_have_is_refused(approved: Approved) -> None:
    with approved.raises(InputError):
        select([FUZZ], ["fuzz[op=write_kv,seed=1]@num_token=3"])
    with approved.raises(InputError):
        select([FUZZ], ["fuzz[op=write_kv,seed=1]@patterns=[nun]"])


@pytest.mark.parametrize(
    "wrong",
    [
        "fuzz[seed=1]",
        "fuzz[seed=1,op=write_kv]",
        "fuzz[op=write_kv,seed=x]",
        "fuzz[op=no_such_op,seed=1]",
        "other[op=write_kv,seed=1]",
        "fuzz[seed=7,draw=12]",
        "fuzz[kernel=mine,op=write_kv,seed=1]",
    ],
)
def test_other_ids_are_no_draws(wrong: str) -> None:
    assert drawn_case(FUZZ, wrong) is None
    with pytest.raises(UnknownNameError, match="unknown"):
        select([FUZZ, SEQUENCES], [wrong])


def test_sequences_are_of_the_engine_alone() -> None:
    assert drawn_case(SEQUENCES, "fuzz-sequences[op=write_kv,seed=1]") is None
    assert drawn_case(SEQUENCES, "fuzz-sequences[op=engine,seed=1]").system == "engine"


def test_every_op_with_parameters_says_in_its_folder_how_its_calls_are_drawn() -> None:
    assert set(draws_of_ops()) == set(KERNEL_PARAMS)
    # A new op takes the next place, so that the others keep theirs.
    assert [how.place for how in draws_of_ops().values()] == list(range(len(KERNEL_PARAMS)))


def test_draws_are_the_same_in_every_process() -> None:
    code = "from harness.scenario.draws import draw; print(draw('7:31'))"
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONHASHSEED": "5"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True
    )
    assert done.stdout.strip() == repr(draw("7:31"))


def test_seeds_draw_different_cases() -> None:
    assert [case.params for case in expand(FUZZ, seed=8)] != [case.params for case in DRAWN]
    assert (
        len({case.model_copy(update={"id": "", "seed": 0}).model_dump_json() for case in DRAWN})
        > 36
    )


def test_draws_cover_every_op_and_the_engine() -> None:
    assert {case.op for case in (*DRAWN, *expand(FUZZ, seed=8), *expand(FUZZ, seed=9))} == {
        None,
        *KERNEL_PARAMS,
    }


@pytest.mark.nightly
def test_draws_reach_every_value_of_more() -> None:
    drawn = drawn_params(30)
    for op, how in draws_of_ops().items():
        for name, values in how.more.items():
            assert {getattr(case.params, name) for case in drawn if case.op == op} == set(values), (
                op,
                name,
            )


@pytest.mark.parametrize("seed", range(5))
def test_draws_are_legal(seed: int) -> None:
    for case in expand(FUZZ, seed=seed):
        model = KERNEL_PARAMS[case.op] if case.op else EngineParams
        assert model.model_validate(case.params.model_dump(mode="json")) == case.params


@pytest.mark.nightly
def test_draws_reach_the_edges_of_pages_and_every_feature_of_the_engine() -> None:
    drawn = drawn_params(20)

    def values(field: str, among: list[Draw]) -> set[object]:
        return {value for case in among for value in getattr(case.params, field)}

    decoding = [case for case in drawn if case.op == "mla_decode"]
    assert {0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE} <= values(
        "seq_lens", decoding
    )
    engines = [case for case in drawn if case.system == "engine"]
    assert values("layers", engines) == {"mla", "kda", "window", "sparse"}
    for field in ("prefix_caching", "flush", "drafter", "dummy_steps", "zero_fill_output"):
        assert {getattr(case.params, field) for case in engines} == {True, False}, field


def test_override_judges_one_kernel_by_the_draws_of_its_op() -> None:
    override = KernelOverride.named("write_kv/torch")
    cases = expand(FUZZ, seed=7, override=override)
    assert {case.op for case in cases} == {None, "write_kv"}
    assert select([FUZZ], [cases[0].id], override=override) == [cases[0]]


def test_sequences_are_drawn_from_their_id_alone_and_reach_every_part_of_their_words() -> None:
    cases = [case for seed in range(12) for case in expand(SEQUENCES, seed=seed)]
    assert drawn_case(SEQUENCES, cases[30].id) == cases[30]
    every = [case.params_as(EngineParams) for case in cases]
    assert {params.layers[0] for params in every} == {"mla", "kda", "window", "sparse"}
    assert {params.graph for params in every} == {"none", "full"}
    assert {params.num_hashes for params in every} >= {None, 1, 2}
    assert {True} == {
        any(getattr(params, name) for params in every) for name in ("aborts", "arrivals", "flush")
    }
    assert any(chain.endswith("+") for params in every for chain in params.chains)
    lengths = {length for params in every for length, _ in params.requests}
    assert {1, 2, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE} <= lengths


def test_sequences_of_states_share_them_and_change_like_other_sequences() -> None:
    every = [
        draw_sequence(f"{seed}:{number}", has_states=True).params
        for seed in range(20)
        for number in range(3)
    ]
    assert (
        all("kda" in params.layers for params in every)
        and sum(params.prefix_caching for params in every) > 30
    )
    assert {change for params in every for change, _ in params.changes} >= {"reload", "sleep"}
