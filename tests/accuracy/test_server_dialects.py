"""Servers whose counters have other names, which have slots in place of pages, and which score no
prompt.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from harness.accuracy.acceptance import Drafts, drafts_in
from harness.accuracy.cache_hits import Hits, hits_in
from harness.accuracy.script import ENDLESS, PagePool, requests_of
from harness.accuracy.script_check import Judged, ScriptCheck, check_script
from harness.accuracy.script_server import ScriptServer
from harness.accuracy.server_dialects import LLAMACPP, SGLANG, VLLM, dialect_of, slots_of
from harness.accuracy.server_replies import ServerReply, read_reply, score_of_next
from harness.diagnose.traces import TraceCheck, answer
from harness.run.scripts import load_script
from tests.conftest import Cli
from tests.transcripts import Approved
from tests.waiting import HANG_SECONDS

pytest.importorskip("httpx")

Serve = Callable[..., str]
START = "sequence_server.py"
METRICS = """\
# HELP llamacpp:prompt_tokens_total Number of prompt tokens processed, excluding cached tokens
llamacpp:prompt_tokens_total 60
llamacpp:prompt_tokens_cached_total 40
llamacpp:tokens_predicted_total 12
llamacpp:tokens_predicted_seconds_total 0.006402
llamacpp:spec_decode_num_draft_tokens_total 9
llamacpp:spec_decode_num_accepted_tokens_total 7
llamacpp:requests_processing 1
llamacpp:requests_deferred 2
"""


def judged(url: str, name: str, **more: Any) -> Judged:
    script = load_script(name)
    return check_script(ScriptCheck(url=url, script=script, timeout=HANG_SECONDS, **more))


def test_counters_of_llama_cpp_have_the_names_of_vllm() -> None:
    assert dialect_of(METRICS) is LLAMACPP
    counts = LLAMACPP.counts(METRICS)
    assert counts["num_requests_running"] + counts["num_requests_waiting"] == 3
    assert (counts["prefix_cache_hits"], counts["generation_tokens"]) == (40, 12)
    assert LLAMACPP.pool(METRICS) is None
    assert (drafts_in(METRICS), hits_in(METRICS)) == (Drafts(9, 7), Hits(100, 40))
    assert [dialect_of(text) for text in ("vllm:a 1\n", "sglang:a 1\n", "")] == [
        VLLM,
        SGLANG,
        VLLM,
    ]


@pytest.mark.parametrize(
    "props",
    [
        {},
        {"total_slots": 4},
        {"total_slots": "4", "default_generation_settings": {"n_ctx": 512}},
        {"total_slots": 4, "default_generation_settings": {"n_ctx": -512}},
        {"total_slots": 1 << 30, "default_generation_settings": {"n_ctx": 1 << 30}},
        {"total_slots": 4, "default_generation_settings": 512},
    ],
)
def test_slots_that_cannot_be_are_none(props: dict[str, Any]) -> None:
    assert slots_of(props) is None
    assert slots_of({"total_slots": 4, "default_generation_settings": {"n_ctx": 512}}) == 2048


def test_log_probabilities_by_token_are_read_as_those_of_a_completion() -> None:
    row = {"id": 7, "token": "x", "logprob": -0.5}
    content = [row | {"top_logprobs": [row, {"id": 9, "token": "x", "logprob": -2.0}]}]
    reply = {"choices": [{"text": "x", "logprobs": {"content": content}}]}
    read = read_reply(reply)
    assert (read.ids, read.logprobs) == ([7], (-0.5,))
    assert read.top == ({"token_id:7": -0.5, "token_id:9": -2.0},)
    for broken in ([{}], [row], [row | {"id": "seven", "top_logprobs": []}], 5):
        wrong = read_reply({"choices": [{"text": "x", "logprobs": {"content": broken}}]})
        assert wrong.error and not wrong.tokens


def test_a_token_is_scored_by_what_is_generated_and_not_by_the_best() -> None:
    top = {"token_id:0": -0.01, "token_id:7": -0.5, "token_id:9": -2.0}
    reply = ServerReply(("token_id:7",), (-0.5,), (top,))
    assert [score_of_next(token, reply) for token in (7, 9, 3)] == [(0.0, 7), (1.5, 7), (1.5, 7)]
    with pytest.raises(ValueError, match="gone"):
        score_of_next(7, ServerReply(error="gone"))


@pytest.mark.first(1)
@pytest.mark.parametrize("name", ["lengths", "abort", "cache-reuse"])
def test_a_server_with_slots_passes_the_scripts_that_it_can_show(
    start_server: Serve, name: str
) -> None:
    found = judged(start_server(START, "llamacpp"), name, page_size=4)
    assert (found.verdict, found.findings, found.not_shown, found.notes) == ("pass", [], [], [])
    assert found.num_tokens > 100


@pytest.mark.first(1)
@pytest.mark.parametrize(
    ("name", "bug", "where"),
    [
        ("cache-reuse", "hash-without-past", "step 2 (the same page after another past)"),
        ("lengths", "prompt-as-decode", "asked alone"),
        ("lengths", "drifts", "step 2 (together)"),
    ],
)
def test_a_bug_of_a_server_with_slots_is_caught(
    start_server: Serve, name: str, bug: str, where: str
) -> None:
    found = judged(start_server(START, "llamacpp", bug), name, page_size=4)
    assert found.verdict == "fail" and found.findings[0].where.startswith(where)


def test_the_slots_of_a_server_are_its_pool(start_server: Serve) -> None:
    server = ScriptServer(start_server(START, "llamacpp"), page_size=4)
    assert server.metrics().cache == PagePool(4, 24)
    server.close()


def test_a_server_that_says_no_sizes_is_judged_by_the_page_that_is_named(
    start_server: Serve, approved: Approved
) -> None:
    url = start_server(START, "no-sizes")
    assert judged(url, "lengths", page_size=4).verdict == "pass"
    approved(
        [
            judged(url, "lengths").reason,
            judged(url, "preempt", page_size=4).reason,
            judged(start_server(START), "lengths", page_size=16).reason,
        ]
    )


def test_an_endless_pool_is_filled_by_no_step() -> None:
    script = load_script("preempt")
    step = next(step for step in script.steps if step.fill)
    with pytest.raises(ValueError, match="does not say"):
        requests_of(script, step, PagePool(16))
    assert PagePool(16).num_pages == ENDLESS


@pytest.mark.nightly
def test_drawn_traces_find_a_bug_of_a_server_with_slots(start_server: Serve) -> None:
    def verdict(*words: str) -> str:
        url = start_server(START, "llamacpp", *words)
        check = TraceCheck(url=url, timeout=HANG_SECONDS, fuzz=6, shrink_seconds=0.0, page_size=4)
        return str(answer(check)["found"]["verdict"])

    assert (verdict(), verdict("hash-without-past")) == ("pass", "fail")


@pytest.mark.nightly
def test_the_command_takes_the_size_of_a_page(start_server: Serve, cli: Cli, tmp_path: Any) -> None:
    url = start_server(START, "llamacpp")
    asked = ("serve-check", url, "--script", "lengths", "--out", tmp_path)
    assert cli(*asked)[0] == 2
    assert cli(*asked, "--page-size", 4)[0] == 0
