"""What child processes of the harness are asked: one record for each line of a request."""

from __future__ import annotations

from harness.core.cases import Case, Job
from harness.core.engine_params import ModelParams
from harness.core.params import Record


class WorkerRequest(Record):
    """A job to carry out, or kernels to describe: `harness.run.worker`.

    `describe` lists plug-in files to load, to describe their kernels. An empty list asks for all kernels there are,
    including the ones of installed packages.
    """

    job: Job | None = None
    gpu: int | None = None
    """Which of the GPUs that the worker sees a job on CUDA runs on."""
    describe: tuple[str, ...] | None = None


class LoadModel(Record):
    """A task and a model to load, with a folder for the task's files: `harness.run.epochs`."""

    params: ModelParams
    work: str


class AskModel(Record):
    """The run directory that gets the answers of the loaded model, and whether it holds some already."""

    directory: str
    resume: bool


class MeasureCases(Record):
    """Cases to time, each `repeats` times: `harness.judge.bench`."""

    cases: tuple[Case, ...]
    repeats: int


class TrainCanary(Record):
    """A canary to train: `harness.canary.train`. `limit` keeps the first questions, all of them when None."""

    task: str
    out: str
    architecture: str
    minutes: float
    device: str
    seed: int
    num_experts: int
    limit: int | None


class CommandLine(Record):
    """Arguments of `mla-harness`: `harness.cli.one_command`."""

    arguments: tuple[str, ...]
