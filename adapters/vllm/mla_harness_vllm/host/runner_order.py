"""The batch order of vLLM's two model runners, computed by their own code.

The first runner has a function that reorders its batch in place. The second runner sorts in the
middle of a method that needs a GPU. The method runs up to its sort, so each release is judged by
its own. Code without such a sort, or with one that needs more than the stand-ins here, is refused.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any
from unittest import mock

import torch

from harness.api import InputError
from mla_harness_adapters.releases import accepted
from mla_harness_vllm.releases import SORTING


@dataclass(frozen=True, slots=True)
class ScheduledRequest:
    """One request of a step: numbers of tokens in its prompt, computed before the step, and
    scheduled in the step.
    """

    name: str
    num_prompt: int
    num_computed: int
    num_scheduled: int

    @property
    def num_tokens(self) -> int:
        return self.num_computed + self.num_scheduled


def first_runner(
    reorder: Callable[..., Any], requests: Sequence[ScheduledRequest], *, decode_threshold: int
) -> tuple[ScheduledRequest, ...]:
    """The batch order after `reorder`, which is vLLM's
    `reorder_batch_to_split_decodes_and_prefills`.
    """
    batch = _InputBatch(requests)
    reorder(batch, _scheduled(requests), decode_threshold=decode_threshold)
    return _named(requests, batch.req_ids)


def second_runner(
    runner: type[Any], requests: Sequence[ScheduledRequest]
) -> tuple[ScheduledRequest, ...]:
    """The batch order of `runner`, the class of the second runner.

    Raises InputError for code that does not sort so.
    """
    method = SORTING.of(runner)
    scheduled = _scheduled(requests)

    def sort(names: Any, **how: Any) -> list[str]:
        ordered = sorted(names, **how)
        # The name is replaced in the whole module. Other sorts of it go on.
        if names is scheduled.num_scheduled_tokens:
            raise _Sorted(ordered)
        return ordered

    others = accepted({"batch_desc": mock.MagicMock(), "dummy_run": False}, method)
    why = "it does not sort the scheduled requests"
    with mock.patch.object(sys.modules[runner.__module__], "sorted", sort, create=True):
        try:
            method(_runner_state(requests), scheduled, **others)
        except _Sorted as found:
            return _named(requests, found.args[0])
        except (AttributeError, KeyError, TypeError) as error:
            why = f"it asks for more than stands in here ({error})"
    name = f"{runner.__module__}:{runner.__qualname__}.{method.__name__}"
    raise InputError(f"{name} is not what this part was written for: {why}")


class _Sorted(Exception):
    """The order into which a runner has sorted its requests. Nothing behind the sort runs."""


class _InputBatch:
    """Stands in for the first runner's `InputBatch`, with the columns that the reordering reads and
    swaps.
    """

    def __init__(self, requests: Sequence[ScheduledRequest]) -> None:
        self.req_ids = [request.name for request in requests]
        self.num_computed_tokens_cpu = _counts(request.num_computed for request in requests)
        self.num_prompt_tokens = _counts(request.num_prompt for request in requests)

    def swap_states(self, i: int, j: int) -> None:
        self.req_ids[i], self.req_ids[j] = self.req_ids[j], self.req_ids[i]
        for counts in (self.num_computed_tokens_cpu, self.num_prompt_tokens):
            counts[[i, j]] = counts[[j, i]]


def _counts(values: Any) -> Any:
    return torch.tensor(list(values), dtype=torch.int32).numpy()


def _named(
    requests: Sequence[ScheduledRequest], names: Sequence[str]
) -> tuple[ScheduledRequest, ...]:
    known = {request.name: request for request in requests}
    return tuple(known[name] for name in names)


def _scheduled(requests: Sequence[ScheduledRequest]) -> Any:
    """The fields of the scheduler's output that an order can depend on."""
    old = [request for request in requests if request.num_computed]
    cached = SimpleNamespace(
        req_ids=[r.name for r in old], num_computed_tokens=[r.num_computed for r in old]
    )
    return SimpleNamespace(
        total_num_scheduled_tokens=sum(request.num_scheduled for request in requests),
        num_scheduled_tokens={request.name: request.num_scheduled for request in requests},
        scheduled_spec_decode_tokens={},
        scheduled_new_reqs=[
            SimpleNamespace(req_id=request.name, num_computed_tokens=0)
            for request in requests
            if request not in old
        ],
        scheduled_cached_reqs=cached,
    )


def _runner_state(requests: Sequence[ScheduledRequest]) -> Any:
    """The fields of the second runner that an order can depend on: each request's progress, and no
    draft tokens.
    """
    computed, prompts = (
        _counts(getattr(request, name) for request in requests)
        for name in ("num_computed", "num_prompt")
    )
    states = SimpleNamespace(
        req_id_to_index={request.name: index for index, request in enumerate(requests)},
        num_computed_tokens_np=computed,
        num_computed_prefill_tokens=computed.clip(max=prompts),
        prefill_len=SimpleNamespace(np=prompts),
        prompt_len=SimpleNamespace(np=prompts),
    )
    return mock.MagicMock(decode_query_len=1, req_states=states)
