"""The child process of `mla-harness serve-check`: `python -m harness.run.serve_check`."""

from __future__ import annotations

from typing import Any

from harness.accuracy.serve_check import Check, check_server
from harness.run.protocol import answer_once


def check(request: Check) -> dict[str, Any]:
    """Check the server. Returns what was found, as an object, as lines, and as a case."""
    found = check_server(request)
    return {"found": found.as_dict(), "lines": found.lines(), "result": found.result().model_dump(mode="json")}


if __name__ == "__main__":
    answer_once(Check, check)
