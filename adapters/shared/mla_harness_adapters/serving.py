"""The serving processes of an engine: requests, the cause if one died, and the process that they
are forks of.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from harness.api import Forks, Record

FREED = ("output", "lse", "workspace", "context.output", "context.lse", "graph.pool", "sched_meta")
"""Sites in memory that is free in the caching allocator before a step.

One sweep fills all of them.
"""
FIRST_NAN_FILE = "first-nan-rank{rank}.json"
"""The report of a rank's recorder of the first NaN."""
NEVER_READY = "serve was never ready"
"""Words of an error without a cause: the server printed the cause before."""
CAUSE_BYTES = 200_000
"""How much of the end of the log is searched for the cause: tracebacks of several workers are long.
"""
_ERROR = re.compile(r"[\w.]*(Error|Exception)\b.*: ")
NAMED = re.compile(r"\w+(?:Error|Exception)\b")
"""The last line of a traceback."""
_LOGGED = re.compile(r"^(?:\([^)]* pid=\d+\) )?(?:[A-Z]+ [-\d]+ [:\d]+ \[[^\]]*\] )?")
"""The prefix of a line of a worker process: the process, then level, time and place."""
_RANK = re.compile(r"^\((\w*Worker[^)]*?) pid=\d+\) ")
"""The rank of a line, such as Worker_TP1, as vLLM names its processes."""
STARTED = "mla-harness: start took"
"""A line of a serving process: its engine has started, and questions follow."""
_ELSEWHERE = ("initialization failed", "timed out", "died unexpectedly", "Executor failed")
"""Last errors without a cause: a worker failed and printed the cause before."""


class ServeRequest(Record):
    """The `options` of an engine, the questions to ask it, and the folder for the answers."""

    options: dict[str, Any]
    task: str
    limit: int | None
    epochs: int
    max_tokens: int
    directory: str


FORK_ENVIRON = {"PYTORCH_NVML_BASED_CUDA_CHECK": "1"}
"""So that the process before the forks can ask for devices without starting the CUDA driver."""


def engine_forks(imports: str, title: str) -> Forks:
    """The process that imported an engine once, and whose forks serve this worker's cases.

    `imports` is the "module:function" that imports, `title` the engine's name in texts. Where this
    release cannot be imported before a fork, one line says why.
    """

    def refused(why: str) -> None:
        print(f"no forks of {title}'s imports, each case imports anew: {why}", file=sys.stderr)

    return Forks([imports], name=f"the process with {title}'s imports", refused=refused)


def last_words(log: str) -> str:
    """The line of a log with the cause: the last error, or the first error of a worker if the last
    has no cause.
    """
    lines = [line.strip() for line in log.splitlines() if line.strip()]
    errors = [line for line in lines if _ERROR.match(line) and NEVER_READY not in line]
    last = (errors or lines or ["it printed nothing"])[-1]
    if errors and not any(words in last for words in _ELSEWHERE):
        return last
    # Other workers fail after the first one, because it is gone.
    of_workers = (_LOGGED.sub("", line) for line in lines if line not in errors)
    return next((line for line in of_workers if _ERROR.match(line)), last)


def waits_for(log: str, num_ranks: int) -> str:
    """When an engine hung, and the last line of each rank; in front the rank that was silent
    first.
    """
    last: dict[str, str] = {}
    for line in log.splitlines():
        if (found := _RANK.match(line)) and (words := _LOGGED.sub("", line).strip()):
            # A rank that prints again moves to the end.
            last.pop(found[1], None)
            last[found[1]] = words[-150:]
    lines = [f"{rank}: {words}" for rank, words in last.items()] or [last_words(log)[-300:]]
    if last and (silent := num_ranks - len(last)) > 0:
        lines.insert(0, f"{silent} of {num_ranks} ranks printed nothing")
    return (
        f"{'while it was asked' if STARTED in log else 'it had not started'}; last lines:"
        f" {' | '.join(lines)}"
    )
