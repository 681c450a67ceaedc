"""The child process that asks a model: `python -m harness.run.epochs`."""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Callable
from pathlib import Path

from harness.accuracy.answer_log import keep_questions
from harness.accuracy.backends import AnswerBackend, open_backend, parse_model
from harness.accuracy.epochs import REPEATS_FILE, Progress, make_header, run_epochs, unrepeated
from harness.accuracy.tasks import load_task
from harness.core.files import write_atomic
from harness.core.model_params import ModelParams
from harness.run.environment import describe_machine
from harness.run.protocol import Parent, Reply, run_child
from harness.run.requests import AskModel, LoadModel

PROGRESS_SECONDS = 0.05
"""The least time between two reports of progress: a fast engine answers hundreds of questions a
second.
"""


def main(parent: Parent) -> None:
    """Load the task and the model, report what was loaded, wait for the run directory, and ask."""
    load = parent.request(LoadModel)
    if load is None:
        return
    params = load.params
    task = load_task(
        params.task,
        Path(load.work),
        data_dir=Path(params.data_dir) if params.data_dir else None,
        filter_name=params.filter,
        limit=params.limit,
    )
    backend = open_model(params)
    header = make_header(backend, task, seed=params.seed, num_epochs=params.epochs).model_dump(
        mode="json"
    )
    parent.reply(
        Reply(ready={"header": header, "environment": describe_machine().model_dump(mode="json")})
    )
    request = parent.request(AskModel)
    if request is None:
        return
    keep_questions(Path(request.directory), task.asked())
    # Loaded modules stay: a collection that walks through lm-eval and torch again is slow.
    gc.freeze()
    run = run_epochs(
        backend,
        task,
        Path(request.directory),
        num_epochs=params.epochs,
        seed=params.seed,
        max_tokens=params.max_tokens,
        resume=request.resume,
        on_progress=_reporter(parent),
    )
    backend.close()
    if params.repeat:
        parent.reply(Reply(progress={"repeats": params.repeat}))
        found = unrepeated(open_model(params.but(concurrency=1)), params.repeat)
        write_atomic(Path(request.directory) / REPEATS_FILE, json.dumps(found))
    parent.reply(Reply(result={"seconds": run.seconds}))


def _reporter(parent: Parent) -> Callable[[Progress], None]:
    """A function that reports progress to the parent, not too often, and always at the end of an
    epoch.
    """
    last = 0.0

    def report(progress: Progress) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= PROGRESS_SECONDS or progress.answered == progress.num_questions:
            last = now
            parent.reply(Reply(progress=vars(progress)))

    return report


def open_model(params: ModelParams) -> AnswerBackend:
    """Start the model with the options of its kind. Raises InputError if it cannot be started."""
    kind, _ = parse_model(params.model)
    given = {name: getattr(params, name) for name in kind.options}
    options = {name: value for name, value in given.items() if value is not None}
    return open_backend(params.model, concurrency=params.concurrency, **options)


if __name__ == "__main__":
    run_child(main)
