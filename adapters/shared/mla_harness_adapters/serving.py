"""The serving processes of an engine: requests, the cause if one died, and the process that they
are forks of.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from harness.api import Forks, Record
from mla_harness_adapters.plan import Plan
from mla_harness_adapters.served_params import ServedParams

FREED = ("output", "lse", "workspace", "context.output", "context.lse", "graph.pool", "sched_meta")
"""Sites in memory that is free in the caching allocator before a step.

One sweep fills all of them.
"""
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
_RANK = re.compile(r"\((\w*Worker[^)]*?) pid=\d+\) ")
"""The rank of a line, such as Worker_TP1, as vLLM names its processes."""
STARTED = "mla-harness: start took"
"""A line of a serving process: its engine has started, and questions follow."""
_ELSEWHERE = ("initialization failed", "timed out", "died unexpectedly", "Executor failed")
"""Last errors without a cause: a worker failed and printed the cause before."""


class ServeRequest(Record):
    """The `options` of an engine, what its processes install, and the questions to ask it.

    The answers go to the folder of the plan.
    """

    options: dict[str, Any]
    plan: Plan
    task: str
    limit: int | None
    epochs: int
    max_tokens: int

    @classmethod
    def of(cls, params: ServedParams, plan: Plan, options: Mapping[str, Any], **more: Any) -> Self:
        """The request with the questions of a case, and `more` that the engine's request has."""
        questions = params.model_dump(include={"task", "limit", "epochs", "max_tokens"})
        return cls(options=dict(options), plan=plan, **questions, **more)


@dataclass(frozen=True, slots=True)
class ServingProcess:
    """How to start a process that serves, and what to ask it.

    `module` is its program, `environ` are variables besides the inherited ones. With
    `fork_environ`, the variables of the process that imports the engine once, it may be a fork of
    that process.
    """

    module: str
    request: Record
    environ: Mapping[str, str]
    fork_environ: Mapping[str, str] | None = None


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
    lines = [line.strip() for line in _lines(log) if line.strip()]
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
    for line in _lines(log):
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


def _lines(log: str) -> list[str]:
    """The lines of a log that several ranks write.

    A line and its end are two writes, so another rank's line can begin between them.
    """
    return _RANK.sub(r"\n\g<0>", log).splitlines()
