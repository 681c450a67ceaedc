"""Drawn cases: reproducible from their id alone, legal, varied, and without traces on disk."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from harness.core.engine_params import EngineParams
from harness.core.params import KERNEL_PARAMS
from harness.scenario import fuzz
from harness.scenario.expand import expand
from harness.scenario.kernel_override import KernelOverride
from harness.scenario.load import load_scenarios, shipped_directory
from harness.scenario.selection import select

(FUZZ,) = [s for s in load_scenarios(shipped_directory()) if s.fuzz is not None]
DRAWN = expand(FUZZ, seed=7)


def test_scenario_draws_as_many_cases_as_it_says() -> None:
    assert FUZZ.fuzz is not None
    assert len(DRAWN) == FUZZ.fuzz.examples == 200
    assert DRAWN[12].id == "fuzz[seed=7,draw=12]"


def test_id_alone_reproduces_its_case() -> None:
    assert fuzz.case_of(FUZZ, "fuzz[seed=7,draw=150]") == DRAWN[150]
    assert select([FUZZ], ["fuzz[seed=7,draw=150]"]) == [DRAWN[150]]


def test_draw_beyond_the_examples_can_be_named() -> None:
    (case,) = select([FUZZ], ["fuzz[seed=3,draw=100000]"])
    assert case.id == "fuzz[seed=3,draw=100000]"


@pytest.mark.parametrize(
    "wrong", ["fuzz[seed=1]", "fuzz[draw=1,seed=1]", "fuzz[seed=x,draw=1]", "other[seed=1,draw=1]"]
)
def test_other_ids_are_no_draws(wrong: str) -> None:
    assert fuzz.case_of(FUZZ, wrong) is None


def test_draws_are_the_same_in_a_process_that_loaded_other_modules(tmp_path: Path) -> None:
    code = "import tarfile, decimal, difflib\nfrom harness.scenario import draws\nprint(draws.draw('7:31'))\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=tmp_path, check=True)
    from harness.scenario import draws

    assert done.stdout.strip() == repr(draws.draw("7:31"))
    assert list(tmp_path.iterdir()) == []


def test_seeds_draw_different_cases() -> None:
    assert [case.params for case in expand(FUZZ, seed=8)] != [case.params for case in DRAWN]
    assert len({case.model_copy(update={"id": "", "seed": 0}).model_dump_json() for case in DRAWN}) > 195


def test_draws_cover_every_op_and_the_engine() -> None:
    assert {case.op for case in DRAWN} == {None, *KERNEL_PARAMS}


def test_draws_are_legal_parameters() -> None:
    for case in DRAWN:
        model = KERNEL_PARAMS[case.op] if case.op else EngineParams
        assert model.model_validate(case.params.model_dump(mode="json")) == case.params


def test_override_judges_one_kernel_by_the_draws_of_its_op() -> None:
    override = KernelOverride.named("write_kv/torch")
    cases = expand(FUZZ, seed=7, override=override)
    assert {case.op for case in cases} == {None, "write_kv"}
    assert select([FUZZ], [cases[0].id], override=override) == [cases[0]]
