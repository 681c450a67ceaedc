"""The child process of `mla-harness serve-check`: `python -m harness.run.serve_check`."""

from __future__ import annotations

from typing import Any

from harness.accuracy.script_check import ScriptCheck, check_script
from harness.accuracy.serve_check import Check, check_server
from harness.core.params import Record
from harness.run.protocol import answer_once


class ServeCheck(Record):
    """What to ask a server: questions, or a script."""

    questions: Check | None = None
    script: ScriptCheck | None = None


def check(request: ServeCheck) -> dict[str, Any]:
    """Check the server. Returns what was found, as an object, as lines, and as a case."""
    if request.script:
        judged = check_script(request.script)
        return {"found": judged.as_dict(), "lines": judged.lines(), "result": judged.result().model_dump(mode="json")}
    assert request.questions
    found = check_server(request.questions)
    return {"found": found.as_dict(), "lines": found.lines(), "result": found.result().model_dump(mode="json")}


if __name__ == "__main__":
    answer_once(ServeCheck, check)
