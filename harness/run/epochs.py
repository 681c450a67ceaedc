"""The child that asks a model: `python -m harness.run.epochs`, started by `harness.run.model_process`."""

from __future__ import annotations

import argparse
import gc
import json
import os
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from harness.accuracy.backends import Backend, open_backend, parse_model
from harness.accuracy.epochs import Progress, make_header, run_epochs
from harness.accuracy.tasks import load_task
from harness.core.engine_params import ModelParams
from harness.core.errors import HarnessError, InputError
from harness.run.environment import describe_machine
from harness.run.model_process import Said
from harness.run.worker import die_with_parent, take_protocol_descriptors

PROGRESS_SECONDS = 0.05
"""A fast engine answers hundreds of questions a second; nobody reads so many lines."""


def main() -> None:
    """Load, say what was loaded, hear where to write, ask."""
    parser = argparse.ArgumentParser(prog="python -m harness.run.epochs")
    parser.add_argument("--parent", type=int, default=0)
    die_with_parent(parser.parse_args().parent)
    orders, replies = take_protocol_descriptors()

    def say(said: Said) -> None:
        replies.write(said.model_dump_json(exclude_none=True).encode("utf-8", "replace") + b"\n")

    try:
        _serve(json.loads(orders.readline()), lambda: orders.readline(), say)
    except InputError as error:
        say(Said(refused=_one_line(error)))
    except HarnessError as error:
        say(Said(failed=_one_line(error)))
    except Exception as error:
        say(Said(failed=_one_line(f"{type(error).__name__}: {error}; traceback in {_keep_traceback()}")))
    # Threads of a serving engine must not keep the process alive.
    os._exit(0)


def _serve(order: dict[str, Any], next_order: Callable[[], bytes], say: Callable[[Said], None]) -> None:
    questions = ModelParams.model_validate(order["questions"])
    task = load_task(
        questions.task,
        Path(order["work"]),
        data_dir=Path(questions.data_dir) if questions.data_dir else None,
        filter_name=questions.filter,
        limit=questions.limit,
    )
    backend = open_model(questions)
    header = make_header(backend, task, seed=questions.seed, num_epochs=questions.epochs)
    machine = describe_machine().model_dump(mode="json")
    say(Said(ready={"header": header.model_dump(mode="json"), "environment": machine}))
    line = next_order()
    if not line:
        return
    target = json.loads(line)
    # What is loaded stays: a collection that goes through lm-eval and torch again costs as much as some steps.
    gc.freeze()
    run = run_epochs(
        backend,
        task,
        Path(target["directory"]),
        num_epochs=questions.epochs,
        seed=questions.seed,
        max_tokens=questions.max_tokens,
        resume=target["resume"],
        on_progress=_Teller(say),
    )
    say(Said(done=run.seconds))
    backend.close()


class _Teller:
    """Tells progress, but not more often than somebody could see; the end of an epoch always."""

    def __init__(self, say: Callable[[Said], None]) -> None:
        self._say = say
        self._told = 0.0

    def __call__(self, progress: Progress) -> None:
        now = time.monotonic()
        if now - self._told >= PROGRESS_SECONDS or progress.answered == progress.num_questions:
            self._told = now
            self._say(Said(progress=vars(progress)))


def open_model(params: ModelParams) -> Backend:
    """Start the model, with the options that its kind has. Raises InputError for what it lacks."""
    kind, _ = parse_model(params.model)
    given = {name: getattr(params, name) for name in kind.options}
    options = {name: value for name, value in given.items() if value is not None}
    return open_backend(params.model, concurrency=params.concurrency, **options)


def _keep_traceback() -> str:
    handle, name = tempfile.mkstemp(prefix="mla-harness-", suffix=".traceback.txt")
    with os.fdopen(handle, "w", encoding="utf-8", errors="replace") as stream:
        stream.write(traceback.format_exc())
    return name


def _one_line(error: object) -> str:
    return " ".join(str(error).split())[:1000]


if __name__ == "__main__":
    main()
