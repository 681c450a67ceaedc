"""The step of a serving run that a script states is one that the engine's scheduler makes."""

from __future__ import annotations

import pytest

from harness.core.cases import Case
from harness.core.engine_params import EngineParams
from harness.core.errors import InputError
from harness.diagnose.script.recipes import decode_step, new_block_step, prefill_step, steps
from tests.transcripts import Approved


def engine(**params: object) -> Case:
    return Case(id="x", scenario="x", system="engine", params=params)  # type: ignore[arg-type]


def test_the_fullest_of_the_longest_decode_steps_is_chosen_and_padded() -> None:
    case = engine(
        requests=[[60, 8], [5, 6], [124, 6]],
        graph="full",
        capture_sizes=[4],
        max_batched_tokens=512,
    )
    numbers = decode_step(case)
    assert numbers["seq_lens"] == [65, 10, 129, 0]
    assert [len(table) for table in numbers["tables"]] == [2, 1, 3, 0]
    assert numbers["num_live"] == 3


def test_a_step_without_a_graph_is_not_padded() -> None:
    assert decode_step(engine(requests=[[60, 8]]))["num_live"] == 1
    assert len(decode_step(engine(requests=[[60, 8]]))["seq_lens"]) == 1


def test_every_token_of_every_request_is_computed_in_some_step() -> None:
    params = EngineParams(requests=((5, 3), (70, 2)), epochs=2)
    found = steps(params)
    computed = sum(len(m.decodes) + sum(p.query_len for p in m.prefills) for m in found)
    assert computed == 2 * (5 + 2 + 70 + 1)


def test_prompts_with_and_without_context_meet_in_one_step() -> None:
    numbers = prefill_step(
        engine(max_batched_tokens=48, requests=[[5, 3], [70, 2], [17, 3], [90, 2]])
    )
    assert min(numbers["context_lens"]) == 0 < max(numbers["context_lens"])
    assert numbers["context_lens"] == sorted(numbers["context_lens"], reverse=True)


def test_a_new_page_was_a_state_before() -> None:
    numbers = new_block_step(engine(layers=("kda", "mla"), num_blocks=12, epochs=2))
    assert numbers["new_blocks"][0] == numbers["tables"][0][-1]


def test_a_schedule_without_such_a_step_is_refused_in_one_line(approved: Approved) -> None:
    with approved.raises(InputError):
        prefill_step(engine(requests=[[5, 2]]))


def test_a_schedule_without_decode_steps_is_refused_in_one_line() -> None:
    with pytest.raises(InputError, match="only decode"):
        decode_step(engine(requests=[[5, 1]]))
