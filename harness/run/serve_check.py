"""The child process of `mla-harness serve-check`: `python -m harness.run.serve_check`."""

from __future__ import annotations

from typing import Any

from harness.accuracy.script_check import ScriptCheck, check_script
from harness.run.protocol import answer_once


def check(request: ScriptCheck) -> dict[str, Any]:
    """Take the script to the server. Returns what was found, as an object, as lines, and as a case."""
    judged = check_script(request)
    return {"found": judged.as_dict(), "lines": judged.lines(), "result": judged.result().model_dump(mode="json")}


if __name__ == "__main__":
    answer_once(ScriptCheck, check)
