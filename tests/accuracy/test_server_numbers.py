"""A number of a server that cannot be is left out, or refused with its reason; none is taken."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import pytest

from harness.accuracy.acceptance import Drafts, drafts_in, keep_drafts, read_drafts
from harness.accuracy.script import StepRequest
from harness.accuracy.script_server import Metrics, ScriptServer
from harness.accuracy.server_backend import ServerBackend, log_probability, whole_number
from harness.core.errors import Refused
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

Serve = Callable[..., str]


@pytest.mark.parametrize(
    "value", [-1, -(10**30), 17, 10**400, True, 3.0, math.nan, math.inf, "3", None, [3], {}]
)
def test_no_count_but_one_that_can_be_is_taken(value: object) -> None:
    assert whole_number(value, most=16) is None
    assert [whole_number(count, most=16) for count in (0, 3, 16)] == [0, 3, 16]


def test_no_log_probability_is_above_0_or_a_text(approved: Approved) -> None:
    for value in (0.5, 5, math.inf, 10**400, -(10**400), True, "-0.5", None, [-0.5]):
        with approved.raises(ValueError):
            log_probability(value)
    assert [log_probability(number) for number in (0, -3, -0.5, -math.inf)] == [
        0.0,
        -3.0,
        -0.5,
        -math.inf,
    ]
    assert math.isnan(log_probability(math.nan)), "a server that computes NaN is judged by it"


@pytest.mark.parametrize("kind", ["impossible numbers", "large numbers"])
def test_an_answer_with_a_count_that_cannot_be_counts_no_tokens(
    start_server: Serve, kind: str
) -> None:
    (answer,) = ServerBackend(start_server("hostile_server.py", kind)).generate(
        ["q"], max_tokens=16, stop=()
    )
    assert (answer.text, answer.num_tokens, answer.unanswered) == ("7", 0, None)


@pytest.mark.parametrize("kind", ["impossible numbers", "large numbers"])
def test_an_answer_with_a_log_probability_that_cannot_be_is_none(
    start_server: Serve, kind: str, approved: Approved
) -> None:
    server = ScriptServer(start_server("hostile_server.py", kind), timeout=HANG_SECONDS)
    requests = [
        StepRequest("a:2", (16, 17), 1, "own"),
        StepRequest("a:2", (16, 17), 1, "own", abort_after=1),
    ]
    whole, _ = replies = server.ask(requests)
    assert not any(reply.tokens for reply in replies)
    approved(whole.error)
    server.close()


def test_a_cache_of_no_pages_and_drafts_that_are_no_numbers_are_none(start_server: Serve) -> None:
    url = start_server("hostile_server.py", "metrics of nothing", "metrics")
    server = ScriptServer(url, timeout=HANG_SECONDS)
    assert server.metrics().cache is None and server.drafts() is None
    server.close()


def test_counters_that_fall_are_those_of_another_start(approved: Approved) -> None:
    before, after = Metrics({"prefix_cache_hits": 7.0}), Metrics({"prefix_cache_hits": 2.0})
    assert before - after == {"prefix_cache_hits": 5}
    with approved.raises(Refused):
        after - before


def test_an_epoch_with_drafts_that_cannot_be_is_not_kept(tmp_path: Path) -> None:
    for epoch, drafts in enumerate((Drafts(8, 6), Drafts(8, 9), Drafts(-8, -6), Drafts(8, -1)), 1):
        keep_drafts(tmp_path, epoch, drafts)
    assert read_drafts(tmp_path) == {1: Drafts(8, 6)}
    name = "vllm:spec_decode_num_draft_tokens_total"
    assert [drafts_in(f"{name} {number}\n") for number in ("1.2.3", "1e400", "-3", "NaN")] == [
        None
    ] * 4
