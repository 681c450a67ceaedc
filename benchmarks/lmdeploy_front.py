"""A front before LMDeploy that speaks vLLM's completions and counters, for `serve-check`.

    python benchmarks/lmdeploy_front.py PORT SERVER ALONE --page 64 --pages 40 --end 0

LMDeploy takes token ids, and says ids and log probabilities, at /generate alone. It counts under
names of its own and knows no `cache_salt`. So requests that are asked alone go to ALONE, a server
with the same options and no prefix cache; it may be SERVER itself. Text prompts pass unchanged.

`ignore_eos` forbids the end tokens in LMDeploy's answers, where vLLM takes them and goes on. The
scores of a prompt are the model's own. So `--end` names the tokens that are left out of them.
"""

from __future__ import annotations

import argparse
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx

from harness.accuracy.server_dialects import ALONE_SALT
from harness.accuracy.whole_reply import connections

COUNTERS = {
    "cached_tokens_total": "prefix_cache_hits_total",
    "prompt_tokens_total": "prefix_cache_queries_total",
    "generation_tokens_total": "generation_tokens_total",
    "spec_decode_num_draft_tokens_total": "spec_decode_num_draft_tokens_total",
    "spec_decode_num_accepted_tokens_total": "spec_decode_num_accepted_tokens_total",
}
"""LMDeploy's names of counters, and vLLM's."""
NOT_THERE = ("response_format", "structured_outputs", "guided_json")
"""What /generate does not take: an answer would be as if it had not been asked for."""


class Front(ThreadingHTTPServer):
    """The two servers, and the requests that run at the first."""

    daemon_threads = True
    # A script asks up to a thousand requests at once.
    request_queue_size = 1024

    def __init__(self, given: argparse.Namespace) -> None:
        super().__init__(("127.0.0.1", given.port), Answering)
        self.given = given
        self.client = httpx.Client(timeout=300, limits=connections())
        self.num_running = 0
        self._lock = threading.Lock()

    def server_close(self) -> None:
        super().server_close()
        self.client.close()

    @contextmanager
    def running(self, server: str) -> Iterator[None]:
        """Count a request while it runs: LMDeploy renews its own gauges every ten seconds."""
        step = int(server == self.given.server)
        with self._lock:
            self.num_running += step
        try:
            yield
        finally:
            with self._lock:
                self.num_running -= step

    def metrics(self) -> str:
        """The counters of the first server under vLLM's names."""
        text = self.client.get(f"{self.given.server}/metrics").text
        sizes = f'block_size="{self.given.page}",num_gpu_blocks="{self.given.pages}"'
        lines = [
            f"vllm:cache_config_info{{{sizes}}} 1.0",
            f"vllm:num_requests_running {self.num_running}",
        ]
        for own, known in COUNTERS.items():
            found = re.findall(rf"^lmdeploy:{own}(?:\{{[^}}]*\}})? (\S+)$", text, re.MULTILINE)
            lines += [f"vllm:{known} {sum(map(float, found))}"] if found else []
        return "\n".join(lines) + "\n"


class Answering(BaseHTTPRequestHandler):
    """One connection of a client."""

    protocol_version = "HTTP/1.1"
    server: Front

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            return self._send(200, self.server.metrics())
        reply = self.server.client.get(self.server.given.server + self.path)
        if self.path == "/v1/models" and reply.status_code == 200:
            listed = reply.json()
            for entry in listed["data"]:
                entry["max_model_len"] = self.server.given.longest
            return self._send(200, json.dumps(listed))
        return self._send(reply.status_code, reply.text)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        given = self.server.given
        if self.path != "/v1/completions":
            return self._send(404, "{}")
        if unknown := [name for name in NOT_THERE if name in body]:
            return self._send(400, json.dumps({"error": f"/generate has no {unknown[0]}"}))
        if isinstance(body["prompt"], str):
            with self.server.running(given.server):
                reply = self.server.client.post(given.server + self.path, json=body)
            return self._send(reply.status_code, reply.text)
        is_alone = str(body.get("cache_salt", "")).startswith(ALONE_SALT)
        where = given.alone if is_alone else given.server
        with self.server.running(where):
            if body.get("stream"):
                return self._stream(where, body)
            return self._generate(where, body)

    def _forbidden(self, body: dict[str, Any]) -> set[int]:
        """The tokens that no answer of this request can hold."""
        return set(self.server.given.end) if body.get("ignore_eos") else set()

    def _generate(self, where: str, body: dict[str, Any]) -> None:
        forbidden = self._forbidden(body)
        reply = self.server.client.post(f"{where}/generate", json=asked(body, forbidden))
        if reply.status_code != 200:
            return self._send(reply.status_code, reply.text)
        return self._send(200, json.dumps(completion(reply.json(), body, forbidden)))

    def _stream(self, where: str, body: dict[str, Any]) -> None:
        """Pass each part on; the stream to the server ends when the client closes this one."""
        forbidden = self._forbidden(body)
        asks = asked(body, forbidden)
        with self.server.client.stream("POST", f"{where}/generate", json=asks) as reply:
            if reply.status_code != 200:
                return self._send(reply.status_code, reply.read().decode())
            self.send_response(200)
            self.send_header("content-type", "text/event-stream")
            self.send_header("connection", "close")
            self.end_headers()
            self.close_connection = True
            try:
                for line in reply.iter_lines():
                    if line.startswith("data: {"):
                        part = json.dumps(completion(json.loads(line[6:]), body, forbidden))
                        self.wfile.write(f"data: {part}\n\n".encode())
                        self.wfile.flush()
                self.wfile.write(b"data: [DONE]\n\n")
            except OSError:
                # The client has what it wanted.
                return None
        return None

    def _send(self, status: int, text: str) -> None:
        data = text.encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def asked(body: dict[str, Any], forbidden: set[int]) -> dict[str, Any]:
    """A request of completions as one of /generate; greedy."""
    more: dict[str, Any] = {"max_tokens": body["max_tokens"], "top_logprobs_num": body["logprobs"]}
    if body.get("prompt_logprobs"):
        # All of the prompt is scored, and nothing is generated. One of the best is allowed.
        num_best = 1 + len(forbidden)
        more = {"max_tokens": 0, "logprob_start_len": 0, "top_logprobs_num": num_best}
    return more | {
        "input_ids": body["prompt"],
        "temperature": 0.0,
        "top_k": 1,
        "ignore_eos": body.get("ignore_eos", False),
        "return_logprob": True,
        "skip_special_tokens": False,
        "stream": body.get("stream", False),
    }


def completion(reply: dict[str, Any], body: dict[str, Any], forbidden: set[int]) -> dict[str, Any]:
    """A reply of /generate as one of completions; an error as it is.

    Tokens that are forbidden are left out of the best at each place of the prompt.
    """
    if "error" in reply:
        return reply
    meta = reply["meta_info"]
    scored = meta.get("output_token_logprobs") or []
    top = meta.get("output_top_logprobs") or []
    choice: dict[str, Any] = {
        "text": reply["text"],
        "logprobs": {
            "tokens": [f"token_id:{token}" for _, token in scored],
            "token_logprobs": [value for value, _ in scored],
            "top_logprobs": [{f"token_id:{token}": value for value, token in row} for row in top],
        },
    }
    if body.get("prompt_logprobs"):
        own = meta.get("input_token_logprobs") or []
        best = meta.get("input_top_logprobs") or []
        rows = [
            {
                str(token): {"logprob": value}
                for value, token in [*others, mine]
                if token not in forbidden or token == mine[1]
            }
            for mine, others in zip(own, best, strict=True)
        ]
        # Nothing comes before the first token, so it has no score.
        choice["prompt_logprobs"] = [None] * (len(body["prompt"]) - len(rows)) + rows
    return {"choices": [choice], "usage": {"prompt_tokens": meta.get("prompt_tokens")}}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("port", type=int)
    parser.add_argument("server", help="for example http://127.0.0.1:23333")
    parser.add_argument("alone", help="the server of requests that are asked alone")
    parser.add_argument("--page", type=int, default=64, help="tokens of a page of its cache")
    parser.add_argument("--pages", type=int, default=40, help="pages of its cache")
    parser.add_argument("--longest", type=int, default=1024, help="tokens of prompt and answer")
    parser.add_argument("--end", type=int, nargs="*", default=[], help="ids of its end tokens")
    Front(parser.parse_args()).serve_forever()


if __name__ == "__main__":
    main()
