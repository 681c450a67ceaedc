"""An OpenAI-compatible server that can add, run as a process of its own:

`python sum_server.py SCRIPT HELD GO`.

SCRIPT is JSON: a number -> what becomes of the attempts at "What is N + N?", one word an attempt:
`drop`, `500`, `empty`, `wrong`, `slow`; when they are used up, or without any, the answer is right.
`always:WORD` never runs out. The request with the number HELD, and all after it, wait until there
is a file GO: so a test decides how far a run gets. Its first line is its port.
"""

from __future__ import annotations

import itertools
import json
import re
import sys
import threading
import time
from pathlib import Path

from replies import Handler, serve  # type: ignore[import-not-found]

SCRIPT: dict[str, list[str]] = json.loads(sys.argv[1])
HELD, GO = float(sys.argv[2]), Path(sys.argv[3])
LOCK, COUNT = threading.Lock(), itertools.count()


class Scripted(Handler):
    def do_GET(self) -> None:
        self.reply(200, {"data": [{"id": "adder"}]})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        found = re.search(r"What is (\d+) \+", body["prompt"])
        number = found[1] if found else "0"
        with LOCK:
            left = SCRIPT.get(number, [])
            deed = (
                "right"
                if not left
                else left[0][7:]
                if left[0].startswith("always:")
                else left.pop(0)
            )
            number_of_request = next(COUNT)
        while number_of_request >= HELD and not GO.exists():
            time.sleep(0.02)
        time.sleep(0.5 if deed == "slow" else 0.0)
        if deed == "drop":
            self.drop()
        elif deed.isdigit():
            self.reply(int(deed), {"error": {"message": "scripted"}})
        else:
            answer = 2 * int(number) + (deed == "wrong")
            text = "" if deed == "empty" else f" That is {answer}.\n#### {answer}"
            self.reply(
                200,
                {
                    "choices": [{"text": text, "finish_reason": "stop"}],
                    "usage": {"completion_tokens": 4},
                },
            )


if __name__ == "__main__":
    serve(Scripted)
