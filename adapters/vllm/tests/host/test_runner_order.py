"""The order of a batch by a model runner's own code: followed where it sorts, refused where it does
not.
"""

from __future__ import annotations

from typing import Any

import pytest

from harness.core.errors import InputError
from mla_harness_vllm.host.runner_order import ScheduledRequest, first_runner, second_runner
from tests.transcripts import Approved

FRESH = ScheduledRequest("fresh", num_prompt=9, num_computed=0, num_scheduled=9)
CHUNK = ScheduledRequest("chunk", num_prompt=70, num_computed=40, num_scheduled=20)
DECODE = ScheduledRequest("decode", num_prompt=30, num_computed=30, num_scheduled=1)


class ByTokensAlone:
    def prepare_inputs(self, scheduler_output: Any, batch_desc: Any) -> Any:
        num_tokens = scheduler_output.total_num_scheduled_tokens
        self.buffers_that_need_a_gpu.fill_(num_tokens)  # type: ignore[attr-defined]
        num_tokens_per_req = scheduler_output.num_scheduled_tokens
        req_ids = sorted(num_tokens_per_req, key=num_tokens_per_req.get)
        return self.launch(req_ids)  # type: ignore[attr-defined]


def sort_by_tokens(num_tokens_per_req: dict[str, int], decode_query_len: int) -> list[str]:
    return sorted(
        num_tokens_per_req, key=lambda name: (num_tokens_per_req[name] != decode_query_len, name)
    )


class ByAFunction:
    def gather_batch_req_state(self, scheduler_output: Any, dummy_run: bool) -> Any:
        assert not dummy_run
        num_tokens_per_req = scheduler_output.num_scheduled_tokens
        req_ids = sort_by_tokens(num_tokens_per_req, self.decode_query_len)  # type: ignore[attr-defined]
        return req_ids


class Mended:
    def prepare_inputs(self, scheduler_output: Any) -> Any:
        num_tokens_per_req = scheduler_output.num_scheduled_tokens
        states: Any = self.req_states  # type: ignore[attr-defined]
        has_none = {
            name: states.num_computed_tokens_np[i] == 0
            for name, i in states.req_id_to_index.items()
        }
        req_ids = sorted(
            num_tokens_per_req, key=lambda name: (has_none[name], num_tokens_per_req[name])
        )
        return req_ids


class FillsTheKeysInALoop:
    def prepare_inputs(self, scheduler_output: Any) -> Any:
        num_tokens_per_req = scheduler_output.num_scheduled_tokens
        key = dict.fromkeys(num_tokens_per_req, 0)
        for request in scheduler_output.scheduled_new_reqs:
            key[request.req_id] = 1
        num_reqs = len(key) + self.a_count_from_elsewhere  # type: ignore[attr-defined]
        req_ids = sorted(num_tokens_per_req, key=lambda name: (key[name], num_tokens_per_req[name]))
        return req_ids, num_reqs


class NotSorted:
    def prepare_inputs(self, scheduler_output: Any) -> Any:
        req_ids = list(scheduler_output.num_scheduled_tokens)
        return req_ids


class AsksForMore:
    def prepare_inputs(self, scheduler_output: Any) -> Any:
        num_tokens_per_req = scheduler_output.num_scheduled_tokens
        req_ids = sorted(num_tokens_per_req, key=self.priority_of)  # type: ignore[attr-defined]
        return req_ids


class LosesOne:
    def prepare_inputs(self, scheduler_output: Any) -> Any:
        num_tokens_per_req = dict(list(scheduler_output.num_scheduled_tokens.items())[1:])
        req_ids = sorted(num_tokens_per_req, key=num_tokens_per_req.get)  # type: ignore[arg-type]
        return req_ids


def names(order: tuple[ScheduledRequest, ...]) -> list[str]:
    return [request.name for request in order]


def test_a_sort_by_tokens_alone_is_followed_without_the_gpu_that_its_method_needs() -> None:
    assert names(second_runner(ByTokensAlone, (CHUNK, FRESH, DECODE))) == [
        "decode",
        "fresh",
        "chunk",
    ]


def test_a_sort_in_a_function_and_another_method_is_followed() -> None:
    assert names(second_runner(ByAFunction, (FRESH, CHUNK, DECODE))) == ["decode", "chunk", "fresh"]


@pytest.mark.parametrize("runner", [Mended, FillsTheKeysInALoop])
def test_a_runner_that_puts_requests_with_context_first_is_seen_as_mended(runner: type) -> None:
    assert names(second_runner(runner, (FRESH, CHUNK, DECODE))) == ["decode", "chunk", "fresh"]


@pytest.mark.parametrize("runner", [NotSorted, AsksForMore, LosesOne])
def test_other_code_is_refused_in_one_line_that_names_the_class(
    runner: type, approved: Approved
) -> None:
    with approved.raises(InputError):
        second_runner(runner, (FRESH, CHUNK, DECODE))


def test_a_reordering_in_place_swaps_everything_that_it_reads() -> None:
    def reorder(batch: Any, scheduled: Any, decode_threshold: int) -> None:
        assert (decode_threshold, scheduled.num_scheduled_tokens["chunk"]) == (128, 20)
        batch.swap_states(0, 2)
        assert batch.num_computed_tokens_cpu.tolist() == [30, 40, 0]
        assert batch.num_prompt_tokens.tolist() == [30, 70, 9]

    assert names(first_runner(reorder, (FRESH, CHUNK, DECODE), decode_threshold=128)) == [
        "decode",
        "chunk",
        "fresh",
    ]
