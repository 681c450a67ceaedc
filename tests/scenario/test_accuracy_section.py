"""The `accuracy` section of a scenario: which cases it plans, and which of them a plain run
takes.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.core.errors import InputError
from harness.scenario.expand import expand, fault_cases
from harness.scenario.load import load_scenario
from harness.scenario.override import KernelOverride
from harness.scenario.schema import Scenario
from harness.scenario.selection import select
from tests.transcripts import Approved

TEXT = """
name: served
summary: a canary in a small pool
system: engine
tags: [hybrid]
accuracy:
  canary: hybrid
  tasks: [gsm_symbolic, aime_shaped]
  kv: fp8_e4m3
  num_blocks: 40
  limit: 8
  epochs: 4
  nightly: {num_blocks: 400}
faults:
  - {name: kv.skip-zero-new-blocks, caught_by: finite, blames: [kv.new]}
  - {name: kv.skip-zero-new-blocks, caught_by: accuracy, on: {accuracy: aime_shaped}}
"""


@pytest.fixture
def served(tmp_path: Path) -> Scenario:
    path = tmp_path / "served.yaml"
    path.write_text(TEXT)
    return load_scenario(path)


def test_each_task_is_a_small_case_and_one_for_the_night(served: Scenario) -> None:
    small, full = expand(served)[1:3]
    assert [case.id for case in expand(served)] == [
        "served",
        "served[accuracy=gsm_symbolic]",
        "served[accuracy=gsm_symbolic,limit=full]",
        "served[accuracy=aime_shaped]",
        "served[accuracy=aime_shaped,limit=full]",
    ]
    assert small.system == "accuracy" and small.oracles == ("accuracy",)
    assert small.poison.patterns == ("natural",) and small.poison.sites == ()
    assert [
        getattr(small.params, name)
        for name in ("task", "limit", "epochs", "num_blocks", "kv", "canary")
    ] == [
        "gsm_symbolic",
        8,
        4,
        40,
        "fp8_e4m3",
        "hybrid",
    ]
    assert (full.params.limit, full.params.num_blocks, full.params.kv) == (None, 400, "fp8_e4m3")
    assert small.tags == ("hybrid", "accuracy") and full.tags == ("hybrid", "accuracy", "nightly")


def test_a_plain_run_leaves_the_night_out_unless_it_is_asked_for(served: Scenario) -> None:
    def ids(*selectors: str, tags: Sequence[str] = ()) -> list[str]:
        return [case.id.removeprefix("served") for case in select([served], selectors, tags=tags)]

    small = ["[accuracy=gsm_symbolic]", "[accuracy=aime_shaped]"]
    full = ["[accuracy=gsm_symbolic,limit=full]", "[accuracy=aime_shaped,limit=full]"]
    assert ids() == ids("served") == ["", *small]
    assert ids(tags=["accuracy"]) == small
    assert ids(tags=["nightly"]) == full
    assert ids("served[accuracy=gsm_symbolic,limit=full]") == full[:1]
    assert ids(tags=["not accuracy"]) == [""]


def test_another_kernel_is_measured_only_when_accuracy_is_asked_for(served: Scenario) -> None:
    override = KernelOverride.named("mla_decode/tiled-identity")
    assert [case.id for case in select([served], override=override)] == [
        "served[kernel=tiled-identity]"
    ]
    measured = select([served], tags=["accuracy"], override=override)
    assert [case.id for case in measured] == [
        "served[kernel=tiled-identity,accuracy=gsm_symbolic]",
        "served[kernel=tiled-identity,accuracy=aime_shaped]",
    ]
    assert measured[0].params.decode_kernel == "tiled-identity"


def test_a_fault_is_tried_on_the_case_of_the_task_that_it_names(served: Scenario) -> None:
    assert [case.id for _, case in fault_cases(served)] == [
        "served",
        "served[accuracy=aime_shaped]",
    ]


def test_a_task_may_be_long_and_is_asked_whole_at_night(tmp_path: Path, approved: Approved) -> None:
    path = tmp_path / "served.yaml"
    path.write_text(TEXT + "long:\n  - {accuracy: gsm_symbolic}\n")
    small, full, other = expand(load_scenario(path))[1:4]
    assert small.tags == ("hybrid", "accuracy", "long")
    assert full.tags == ("hybrid", "accuracy", "nightly")
    assert other.tags == ("hybrid", "accuracy")
    # The fault is tried on the other task: a selftest has no long case.
    path.write_text(TEXT + "long:\n  - {accuracy: aime_shaped}\n")
    with approved.raises(InputError):
        load_scenario(path)


def test_an_engine_scenario_that_names_the_oracle_has_no_answers_for_it(tmp_path: Path) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text(
        "name: plain\nsummary: no questions\nsystem: engine\noracles: [finite, accuracy]\n"
    )
    assert expand(load_scenario(path))[0].oracles == ("finite",)


def test_the_night_needs_a_scenario_that_has_one(tmp_path: Path, approved: Approved) -> None:
    path = tmp_path / "plain.yaml"
    path.write_text("name: plain\nsummary: no questions\nsystem: engine\n")
    with approved.raises(InputError):
        select([load_scenario(path)], tags=["nightly"])
