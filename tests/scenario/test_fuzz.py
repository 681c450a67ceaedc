"""Drawn cases: reproducible from their id alone, legal, and varied."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.cases import Case
from harness.core.engine_params import EngineParams
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import PAGE_SIZE
from harness.scenario.draws import MORE, draw
from harness.scenario.expand import KernelOverride, drawn_case, expand
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select

ROOT = Path(__file__).parents[2]
SEQUENCES, STATES, FUZZ = [s for s in load_scenarios(shipped_directory()) if s.fuzz is not None]
DRAWN = expand(FUZZ, seed=7)


def of_version_2(seed: int, count: int = 200) -> list[Case]:
    found = (drawn_case(FUZZ, f"fuzz[seed={seed},draw={number},v=2]") for number in range(count))
    return [case for case in found if case is not None]


OLD = json.loads(Path(__file__).with_name("old_draws.json").read_text(encoding="utf-8"))


def test_scenario_draws_as_many_cases_as_it_says() -> None:
    assert FUZZ.fuzz is not None
    assert len(DRAWN) == FUZZ.fuzz.examples == 60
    assert DRAWN[12].id == "fuzz[seed=7,draw=12,v=4]"


def test_id_alone_reproduces_its_case() -> None:
    assert drawn_case(FUZZ, "fuzz[seed=7,draw=50,v=4]") == DRAWN[50]
    assert select([FUZZ], ["fuzz[seed=7,draw=50,v=4]"]) == [DRAWN[50]]


@pytest.mark.parametrize("identity", OLD)
def test_an_id_of_any_version_stands_for_its_old_case(identity: str) -> None:
    (case,) = select([FUZZ], [identity])
    params, old = case.params.model_dump(mode="json"), OLD[identity]
    # Parameters that are newer than the draw have their defaults. Version 3 draws from the classes
    # of conditions and from what no array shows: whoever changes these keeps what it draws from, or
    # makes a new version.
    defaults = {
        name: value
        for name, value in type(case.params)().model_dump(mode="json").items()
        if name in params
    }
    assert params == defaults | old["params"] | {
        name: defaults[name] for name in params if name not in old["params"]
    }
    found = {"op": case.op, "params": old["params"], "poison": case.poison.model_dump(mode="json")}
    assert (case.id, found) == (identity, old)


def test_draw_beyond_the_examples_can_be_named() -> None:
    (case,) = select([FUZZ], ["fuzz[seed=3,draw=100000]"])
    assert case.id == "fuzz[seed=3,draw=100000]"


@pytest.mark.parametrize(
    "wrong",
    [
        "fuzz[seed=1]",
        "fuzz[draw=1,seed=1]",
        "fuzz[seed=x,draw=1]",
        "other[seed=1,draw=1]",
        "fuzz[seed=1,draw=1,v=1]",
        "fuzz[seed=1,draw=1,v=5]",
    ],
)
def test_other_ids_are_no_draws(wrong: str) -> None:
    assert drawn_case(FUZZ, wrong) is None


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
        > 55
    )


def test_draws_cover_every_op_and_the_engine() -> None:
    assert {case.op for case in (*DRAWN, *expand(FUZZ, seed=8), *expand(FUZZ, seed=9))} == {
        None,
        *KERNEL_PARAMS,
    }


def test_draws_reach_every_value_that_version_2_adds() -> None:
    drawn = [case for seed in range(6) for case in of_version_2(seed)]
    for op, more in MORE.items():
        for name, values in more.items():
            assert {getattr(case.params, name) for case in drawn if case.op == op} == set(values), (
                op,
                name,
            )


@pytest.mark.parametrize("seed", range(5))
def test_draws_are_legal(seed: int) -> None:
    for case in expand(FUZZ, seed=seed):
        model = KERNEL_PARAMS[case.op] if case.op else EngineParams
        assert model.model_validate(case.params.model_dump(mode="json")) == case.params


def test_draws_reach_the_edges_of_pages_and_every_feature_of_the_engine() -> None:
    drawn = [case for seed in range(20) for case in of_version_2(seed)]

    def values(field: str, among: list[Case]) -> set[object]:
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
    ids = [f"{STATES.name}[seed={seed},draw={draw}]" for seed in range(20) for draw in range(3)]
    every = [drawn_case(STATES, one).params_as(EngineParams) for one in ids]
    assert (
        all("kda" in params.layers for params in every)
        and sum(params.prefix_caching for params in every) > 30
    )
    assert {change for params in every for change, _ in params.changes} >= {"reload", "sleep"}
