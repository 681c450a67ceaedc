"""A server with LMDeploy's endpoints and counters, for its front: `python -m lmdeploy_server PORT`.

A token is a hash of the tokens before it, the next one its neighbour. `ignore_eos` forbids the end
token in answers; the scores of a prompt know nothing of that.
"""

from __future__ import annotations

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

VOCABULARY = 1024
PAGE = 4


class Engine(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 1024

    def __init__(self, port: int, *, has_cache: bool, end: int | None = None) -> None:
        super().__init__(("127.0.0.1", port), Answering)
        self.has_cache = has_cache
        self.end = end
        self.pages: set[tuple[int, ...]] = set()
        self.counts = {"cached_tokens_total": 0, "prompt_tokens_total": 0}
        self.counts["generation_tokens_total"] = 0

    def look(self, ids: list[int]) -> None:
        """Count the hits of a prompt, and keep its pages."""
        self.counts["prompt_tokens_total"] += len(ids)
        for end in range(PAGE, len(ids), PAGE):
            page = tuple(ids[:end])
            self.counts["cached_tokens_total"] += PAGE if page in self.pages else 0
            if self.has_cache:
                self.pages.add(page)


class Answering(BaseHTTPRequestHandler):
    server: Engine

    def log_message(self, format: str, *args: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        if self.path == "/metrics":
            lines = [
                f'lmdeploy:{name}{{engine="0",model_name="m"}} {float(count)}'
                for name, count in self.server.counts.items()
            ]
            return self._send("\n".join(lines))
        return self._send(json.dumps({"data": [{"id": "m", "root": "m"}]}))

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if self.path == "/v1/completions":
            return self._send(json.dumps({"choices": [{"text": f"{body['prompt']} #### 1"}]}))
        ids = body["input_ids"]
        if body["max_tokens"] == 0:
            return self._send(json.dumps(_reply([], ids, body["top_logprobs_num"])))
        self.server.look(ids)
        answer: list[int] = []
        for _ in range(body["max_tokens"]):
            forbidden = self.server.end if body["ignore_eos"] else None
            best = _scored(next_token(ids + answer))[1]
            answer.append(next(token for _, token in best if token != forbidden))
            self.server.counts["generation_tokens_total"] += 1
        if not body["stream"]:
            return self._send(json.dumps(_reply(answer, ids, 1)))
        parts = [json.dumps(_reply([token], ids, 1)) for token in answer]
        return self._send("".join(f"data: {part}\n\n" for part in [*parts, _END]))

    def _send(self, text: str) -> None:
        self.send_response(200)
        self.send_header("content-length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


_END = json.dumps({"text": "", "output_ids": [], "meta_info": {"prompt_tokens": 1}})


def next_token(ids: list[int]) -> int:
    return sum(place * token for place, token in enumerate(ids, 1)) * 31 % VOCABULARY


def _scored(token: int) -> tuple[tuple[float, int], list[tuple[float, int]]]:
    best = [(-0.1, token)] + [(-3.0 - n, (token + n) % VOCABULARY) for n in range(1, 5)]
    return best[0], best


def _reply(answer: list[int], ids: list[int], num_best: int) -> dict[str, Any]:
    own = [_scored(token) for token in answer]
    prompt = [_scored(next_token(ids[:place])) for place in range(1, len(ids))]
    mine = [
        (next((value for value, known in top if known == token), -9.0), token)
        for token, (_, top) in zip(ids[1:], prompt, strict=True)
    ]
    meta = {
        "prompt_tokens": len(ids),
        "output_token_logprobs": [first for first, _ in own] or None,
        "output_top_logprobs": [top for _, top in own] or None,
        "input_token_logprobs": mine if not answer else None,
        "input_top_logprobs": [top[:num_best] for _, top in prompt] if not answer else None,
    }
    return {"text": "x" * len(answer), "output_ids": answer, "meta_info": meta}


if __name__ == "__main__":
    Engine(int(sys.argv[1]), has_cache="cache" in sys.argv).serve_forever()
