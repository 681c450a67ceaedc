"""An OpenAI-compatible server that adds and drafts:

`python drafting_server.py SHARES`, a JSON list.

Its metrics are vLLM's: each answer drafts 100 tokens, and the share of its epoch of two answers is
accepted. The prefix cache has hits from the second answer on. Its first line is its port.
"""

from __future__ import annotations

import json
import re
import sys
import threading

from replies import Handler, serve  # type: ignore[import-not-found]

SHARES: list[float] = json.loads(sys.argv[1])
LOCK = threading.Lock()
counts = {"answers": 0, "draft": 0, "accepted": 0}
HITS = ("prefix_cache_queries", "prefix_cache_hits")


class Drafting(Handler):
    def do_GET(self) -> None:
        if not self.path.endswith("/metrics"):
            return self.reply(200, {"data": [{"id": "adder"}]})
        kinds = ("draft", "accepted")
        lines = [
            f'vllm:spec_decode_num_{kind}_tokens_total{{engine="0"}} {counts[kind]}.0'
            for kind in kinds
        ]
        # Each prompt has 40 tokens. All prompts but the first find 30 of them in the cache.
        tokens = (40 * counts["answers"], 30 * max(counts["answers"] - 1, 0))
        lines += [
            f'vllm:{name}_total{{engine="0"}} {number}.0'
            for name, number in zip(HITS, tokens, strict=True)
        ]
        text = "\n".join([*lines, ""]).encode()
        self.send_response(200)
        self.send_header("content-length", str(len(text)))
        self.end_headers()
        self.wfile.write(text)

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = re.search(r"What is (\d+) \+", body["prompt"])
        number = int(found[1]) if found else 0
        with LOCK:
            share = SHARES[min(counts["answers"] // 2, len(SHARES) - 1)]
            counts["answers"] += 1
            counts["draft"] += 100
            counts["accepted"] += round(100 * share)
        text = f" That is {2 * number}.\n#### {2 * number}"
        self.reply(
            200,
            {
                "choices": [{"text": text, "finish_reason": "stop"}],
                "usage": {"completion_tokens": 4},
            },
        )


if __name__ == "__main__":
    serve(Drafting)
