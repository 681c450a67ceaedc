"""The requests to child processes of the harness."""

from __future__ import annotations

from harness.core.cases import CellOf, Job
from harness.core.model_params import ModelParams
from harness.core.params import Record


class WorkerRequest(Record):
    """For `harness.run.worker`: a job to run, or plug-in files with kernels to describe.

    An empty `describe` asks for all kernels, also of installed packages.
    """

    job: Job | None = None
    gpu: int | None = None
    """The GPU of a job on CUDA, by the worker's numbering."""
    describe: tuple[str, ...] | None = None
    cell: CellOf | None = None
    """The cell in which files to describe are loaded."""


class LoadModel(Record):
    """For `harness.run.epochs`: the task and model to load.

    `work` is a folder for the task's files.
    """

    params: ModelParams
    work: str


class AskModel(Record):
    """For `harness.run.epochs`: the run directory for the model's answers; `resume` if it holds
    some already.
    """

    directory: str
    resume: bool


class CommandLine(Record):
    """For `harness.cli.bisect_child`: the arguments of `mla-harness`."""

    arguments: tuple[str, ...]
