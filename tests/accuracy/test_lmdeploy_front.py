"""The front before LMDeploy: its servers look to `serve-check` as vLLM's do."""

from __future__ import annotations

import argparse
import threading
from collections.abc import Iterator
from contextlib import closing

import pytest
from lmdeploy_front import Front

from harness.accuracy.script import StepRequest
from harness.accuracy.script_check import ScriptCheck, check_script
from harness.accuracy.script_server import ScriptServer
from harness.run.scripts import load_script
from tests.servers.lmdeploy_server import Engine, next_token

PROMPT = tuple(range(1, 14))
END = next_token(list(PROMPT))
"""What the model prefers behind the prompt, so that `ignore_eos` matters."""


@pytest.fixture
def front() -> Iterator[Front]:
    """A front before an engine with a prefix cache and one without."""
    engines = [Engine(0, has_cache=has_cache, end=END) for has_cache in (True, False)]
    urls = [f"http://127.0.0.1:{engine.server_port}" for engine in engines]
    given = {"port": 0, "server": urls[0], "alone": urls[1], "page": 4, "pages": 40}
    given["end"] = [END]
    served = Front(argparse.Namespace(**given, longest=200))
    for server in (*engines, served):
        threading.Thread(target=server.serve_forever, daemon=True).start()
    yield served
    for server in (*engines, served):
        server.shutdown()
        server.server_close()


@pytest.fixture
def server(front: Front) -> Iterator[ScriptServer]:
    with closing(ScriptServer(_url(front))) as opened:
        yield opened


def _url(front: Front) -> str:
    return f"http://127.0.0.1:{front.server_port}/v1"


def test_an_answer_has_ids_and_its_best_tokens(server: ScriptServer) -> None:
    (reply,) = server.ask([StepRequest("p", PROMPT, 3, "own")])
    assert reply.error == ""
    assert reply.ids is not None and len(reply.ids) == 3
    assert reply.num_prompt_tokens == len(PROMPT)
    assert [len(row) for row in reply.top] == [5, 5, 5]


def test_a_stream_ends_after_the_tokens_that_were_wanted(server: ScriptServer) -> None:
    wanted = StepRequest("p", PROMPT, 8, "own", abort_after=2)
    (reply,) = server.ask([wanted])
    assert reply.error == "" and len(reply.tokens) == 2


def test_a_request_alone_goes_to_the_server_without_a_prefix_cache(server: ScriptServer) -> None:
    request = StepRequest("p", PROMPT, 3, "own")
    server.ask([request, request], together=False)
    before = server.metrics()
    ((reply, scores),) = server.ask_alone([request])
    assert (server.metrics() - before)["prefix_cache_hits"] == 0
    assert before.counts["prefix_cache_hits"] == 12
    assert reply.ids is not None
    assert scores == [(0.0, token) for token in reply.ids]


def test_the_end_is_no_better_token_where_an_answer_cannot_hold_it(
    front: Front, server: ScriptServer
) -> None:
    ((reply, scores),) = server.ask_alone([StepRequest("p", PROMPT, 3, "own")])
    assert reply.ids is not None and END not in reply.ids
    assert scores == [(0.0, token) for token in reply.ids]


def test_the_end_is_a_better_token_if_the_front_does_not_know_it(
    front: Front, server: ScriptServer
) -> None:
    front.given.end = []
    ((_, scores),) = server.ask_alone([StepRequest("p", PROMPT, 3, "own")])
    assert scores is not None
    (margin, preferred), *_ = scores
    assert margin > 1 and preferred == END


def test_a_script_passes_with_hits(front: Front) -> None:
    check = ScriptCheck(url=_url(front), script=load_script("cache-reuse"), tolerance=0)
    judged = check_script(check)
    assert not judged.findings
    assert judged.events["prefix_cache_hits"] > 0
    assert judged.num_tokens > 0


def test_a_schema_is_refused_that_generate_does_not_take(server: ScriptServer) -> None:
    request = StepRequest("p", PROMPT, 3, "own", schema="colour")
    assert not server.has(request)
