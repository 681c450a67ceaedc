"""A server that means harm: `python hostile_server.py KIND [PART]`. Its first line is its port.

PART is what is hostile: `models`, `answers` (the default), `metrics`, or `all`. The rest of it is
plain.
"""

from __future__ import annotations

import gzip
import itertools
import json
import sys
import time
from typing import Any

from replies import Handler, serve  # type: ignore[import-not-found]

HARM = "\x1b[2J\x1b]0;owned\x07</script><img src=x onerror=alert(1)>\x00\u202e{{ 7*7 }}"
KIND = sys.argv[1] if len(sys.argv) > 1 else ""
PART = sys.argv[2] if len(sys.argv) > 2 else "answers"


def logprobs(tokens: list[Any], values: list[Any], best: list[Any]) -> dict[str, list[Any]]:
    return {"tokens": tokens, "token_logprobs": values, "top_logprobs": best}


ANSWER: dict[str, Any] = {
    "choices": [
        {
            "text": " 7",
            "finish_reason": "stop",
            "logprobs": logprobs(["token_id:5"], [-0.1], [{"token_id:5": -0.1}]),
        }
    ],
    "usage": {"completion_tokens": 1, "prompt_tokens": 1},
}
METRICS = (
    'vllm:cache_config_info{block_size="4",num_gpu_blocks="24"} 1.0\nvllm:num_preemptions_total'
    " 1.0\n" + "vllm:prefix_cache_hits_total 1.0\nvllm:prefix_cache_queries_total"
    " 1.0\nvllm:generation_tokens_total 1.0\n"
)
BODIES: dict[str, bytes] = {
    "empty": b"",
    "binary": bytes(range(256)) * 64,
    "escapes": HARM.encode(),
    "deep": b"[" * 200_000,
    "deep object": b'{"a":' * 100_000,
    "null": b"null",
    "list": b"[]",
    "strings": json.dumps({"choices": HARM, "data": HARM, "usage": HARM}).encode(),
    "nulls": json.dumps({"choices": [None], "data": [None], "usage": None}).encode(),
    "numbers": json.dumps({"choices": [7], "data": 7, "usage": 7}).encode(),
    "huge number": b'{"choices": [{"text": "7", "logprobs": 1' + b"0" * 5000 + b"}]}",
    "surrogate": (
        b'{"choices": [{"text": "\\ud800", "finish_reason": "\\ud800"}], "data": [{"id":'
        b' "\\ud800"}]}'
    ),
    "harmful text": (
        json.dumps(
            {
                "choices": [
                    {
                        "text": HARM * 3,
                        "finish_reason": HARM,
                        "logprobs": logprobs([HARM], [0.0], [{HARM: 0.0}]),
                    }
                ],
                "data": [{"id": HARM, "root": HARM}],
                "usage": {"completion_tokens": HARM},
            }
        ).encode()
    ),
    "wrong types": (
        json.dumps(
            {
                "choices": [
                    {"text": 7, "finish_reason": [], "logprobs": logprobs([7], ["x"], [None])}
                ],
                "usage": [7],
            }
        ).encode()
    ),
    "NaN": (
        b'{"choices": [{"text": "7", "logprobs": {"tokens": ["token_id:5"], "token_logprobs":'
        b' [NaN], "top_logprobs": [{"token_id:5": Infinity}]}}], "usage": {"completion_tokens":'
        b" -7}}"
    ),
    "impossible numbers": (
        json.dumps(
            {
                "choices": [
                    {
                        "text": "7",
                        "index": -1,
                        "logprobs": logprobs(["token_id:5"], [5.5], [{"token_id:5": 0}]),
                    }
                ],
                "data": [{"id": "toy", "max_model_len": -(10**30)}],
                "usage": {"completion_tokens": -(10**30), "prompt_tokens": True},
            }
        ).encode()
    ),
    "large numbers": (
        json.dumps(
            {
                "choices": [
                    {
                        "text": "7",
                        "logprobs": logprobs(
                            ["token_id:" + "9" * 4000], [-(10**400)], [{"token_id:5": -(10**400)}]
                        ),
                    }
                ],
                "usage": {"completion_tokens": 10**400, "prompt_tokens": 10**400},
            }
        ).encode()
    ),
    "metrics of nothing": (
        b'vllm:cache_config_info{block_size="0",num_gpu_blocks="0"} 1\nsglang:page_size 0\n'
        b"sglang:num_pages 1e99\nvllm:spec_decode_num_draft_tokens_total 1.2.3\n"
        b"vllm:spec_decode_num_accepted_tokens_total 1e400\n"
    ),
    "metrics of text": (
        b"vllm:prefix_cache_hits_total owned\nvllm:num_requests_running ....\n"
        b"vllm:num_preemptions_total 1"
        + b"0"
        * 5000
        + b"\nvllm:generation_tokens_total 1e999\nsglang:page_size 1e999\n"
        b'sglang:num_pages inf\nvllm:cache_config_info{block_size="2",num_gpu_blocks="'
        + b"9" * 5000
        + b'"} 1\n'
    ),
}
STREAMED = (
    "huge",
    "endless",
    "slow loris",
    "bomb",
    "bad gzip",
    "no HTTP",
    "endless head",
    "cut off",
    "many lines",
)
KINDS = (*BODIES, *STREAMED)


class Hostile(Handler):
    def do_GET(self) -> None:
        part = "models" if self.path.endswith("/models") else "metrics"
        if PART in (part, "all"):
            self.harm()
        elif part == "models":
            self.reply(200, {"data": [{"id": "toy", "root": "toy"}]})
        else:
            self.text(METRICS.encode())

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if PART in ("answers", "all"):
            self.harm()
        elif body.get("stream"):
            self.text(b"data: " + json.dumps(ANSWER).encode() + b"\n\ndata: [DONE]\n\n")
        else:
            self.reply(200, ANSWER)

    def text(self, data: bytes, *headers: tuple[str, str]) -> None:
        self.send_response(200)
        for name, value in (*headers, ("content-length", str(len(data)))):
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(data)

    def harm(self) -> None:
        try:
            if KIND in BODIES:
                self.text(BODIES[KIND])
            else:
                self.stream()
        except OSError:
            # The harness has hung up.
            pass
        self.close_connection = KIND in STREAMED

    def stream(self) -> None:
        if KIND == "bad gzip":
            return self.text(b"no gzip at all", ("content-encoding", "gzip"))
        if KIND == "bomb":
            return self.text(gzip.compress(bytes(2**28), 9), ("content-encoding", "gzip"))
        if KIND == "no HTTP":
            self.wfile.write(HARM.encode() + b"\r\n\r\n")
            return None
        self.wfile.write(b"HTTP/1.1 200 OK\r\n")
        if KIND == "endless head":
            for number in itertools.count():
                self.wfile.write(b"x-%d: y\r\n" % number)
        if KIND == "cut off":
            self.wfile.write(b"content-length: 1000\r\n\r\n{")
            return None
        self.wfile.write(b"\r\n")
        if KIND == "slow loris":
            for _ in itertools.count():
                self.wfile.write(b" ")
                time.sleep(0.2)
        part = b"data: {}\n" * 2**13 if KIND == "many lines" else b" " * 2**16
        for _ in range(2**12) if KIND == "huge" else itertools.count():
            self.wfile.write(part)
        return None


if __name__ == "__main__":
    serve(Hostile)
