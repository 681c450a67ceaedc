"""What parent and worker say to each other: one JSON object a line, jobs one way and replies the other."""

from __future__ import annotations

import json
from typing import Any

from harness.core.cases import Job
from harness.core.params import Record

DEFAULT_EXECUTE = "harness.judge.run_case:run_case"
"""The "module:function" that turns a Job into a CaseResult inside the worker."""


class Reply(Record):
    """One line from a worker: `ready` once after start-up, then `result` for each job.

    `described` answers a request to describe kernels: one dictionary for each, with `why_not` by device beside what
    the kernel declares.
    `refused` is one sentence about input that the worker cannot use, such as a plug-in that does not import.
    """

    ready: dict[str, Any] | None = None
    result: dict[str, Any] | None = None
    described: list[dict[str, Any]] | None = None
    refused: str | None = None
    is_spent: bool = False
    """The worker's CUDA context failed for good with this job; it ends and must be replaced."""


class Request(Record):
    """One line to a worker: a job to execute, or kernels to describe.

    `describe` lists plug-in files to load, whose kernels are described; an empty list asks for all kernels there are,
    those of installed packages included.
    """

    job: Job | None = None
    gpu: int | None = None
    """Which of the GPUs that the worker sees a job on CUDA runs on."""
    describe: tuple[str, ...] | None = None


def encode(message: Record) -> bytes:
    """One line of strict JSON. Raises ValueError for a NaN, which JSON has no word for."""
    text = json.dumps(message.model_dump(), allow_nan=False, ensure_ascii=False, separators=(",", ":"))
    # A kernel's message may hold lone surrogates, which UTF-8 has no bytes for.
    return text.encode("utf-8", "replace") + b"\n"


def decode_reply(line: bytes) -> Reply:
    """The reply on one line. Raises ValueError when a kernel scribbled over it."""
    return Reply.model_validate_json(line)


def decode_request(line: bytes) -> Request:
    """The request on one line. Raises ValueError when it is not one."""
    return Request.model_validate_json(line)
