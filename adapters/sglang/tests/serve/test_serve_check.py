"""The counters of an SGLang server, as `serve-check` reads them."""

from __future__ import annotations

import httpx
import pytest

from harness.accuracy.script import PagePool
from harness.accuracy.script_server import ScriptServer

TEXT = """# HELP sglang:prompt_tokens_total Number of prefill tokens processed.
sglang:prompt_tokens_total{model_name="m"} 90.0
sglang:cached_tokens_total{model_name="m"} 32.0
sglang:generation_tokens_total{model_name="m"} 7.0
sglang:num_retracted_requests_total{model_name="m"} 2.0
sglang:num_running_reqs{model_name="m"} 0.0
sglang:num_queue_reqs{model_name="m"} 0.0
sglang:page_size{model_name="m"} 64.0
sglang:num_pages{model_name="m"} 28.0
"""


def test_counters_of_sglang_have_the_names_of_vllm(monkeypatch: pytest.MonkeyPatch) -> None:
    server = ScriptServer("http://127.0.0.1:1/v1", served_model="m")
    monkeypatch.setattr(
        server,
        "_client",
        httpx.Client(transport=httpx.MockTransport(lambda _: httpx.Response(200, text=TEXT))),
    )
    found = server.metrics()
    assert found.cache == PagePool(64, 28)
    assert found - type(found)() == {
        "prefix_cache_hits": 32,
        "prefix_cache_queries": 90,
        "num_preemptions": 2,
        "generation_tokens": 7,
    }
