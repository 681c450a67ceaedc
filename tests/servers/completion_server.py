"""A small OpenAI-compatible server, run as a process of its own:

`python completion_server.py SCRIPT.json`.

The script maps a text found in the prompt to the misdeeds of its first attempts, in order: `drop`,
`500`, `429`, `400`, `empty`, `garbage`, `hang`, and `until PATH`, which is answered once that file
is there. Later attempts are answered with `answer N` for a prompt ending in `N`. Each attempt is
printed as a line; the first line is the port. A request for log probabilities gets three: one of
them is NaN, and one is too large.
"""

from __future__ import annotations

import json
import sys
import threading
import time
from pathlib import Path

from replies import Handler, serve  # type: ignore[import-not-found]

SCRIPT: dict[str, list[str]] = json.loads(sys.argv[1])
LOCK = threading.Lock()


class Scripted(Handler):
    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "toy"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        prompt = body["prompt"]
        with LOCK:
            key = next((key for key in SCRIPT if key in prompt), None)
            deed = SCRIPT[key].pop(0) if key and SCRIPT[key] else "answer"
            print(
                json.dumps({"prompt": prompt, "deed": deed, "body": body, "at": time.monotonic()}),
                flush=True,
            )
        self._do(deed, prompt, wants_logprobs=bool(body.get("logprobs")))

    def _do(self, deed: str, prompt: str, *, wants_logprobs: bool) -> None:
        if deed == "drop":
            self.drop()
            return
        if deed.isdigit():
            return self.reply(int(deed), {"error": f"scripted {deed}"})
        if deed == "garbage":
            return self.reply(200, {"nothing": True})
        if deed.startswith("until "):
            while not Path(deed.removeprefix("until ")).exists():
                time.sleep(0.02)
        if deed == "hang":
            time.sleep(3600)
        text = "" if deed == "empty" else f" answer {prompt.split()[-1]}Question: more"
        choice: dict[str, object] = {"text": text, "finish_reason": "stop"}
        if wants_logprobs:
            # Python's reader of JSON takes NaN, as the servers' do.
            values = [-0.5, float("nan"), 7.0]
            choice["logprobs"] = {"tokens": [" answer", " to", " it"], "token_logprobs": values}
        self.reply(
            200,
            {
                "choices": [choice],
                "usage": {"completion_tokens": 3},
            },
        )


if __name__ == "__main__":
    serve(Scripted)
