"""The run directory: the plan of a run and its results, appended so that a kill loses no finished
case.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, field_validator

from harness.core import unreadable
from harness.core.cases import Job
from harness.core.catalog import KERNELS
from harness.core.errors import GoneError, InputError
from harness.core.files import write_atomic
from harness.core.kernels import BUILT_IN, KernelSpec
from harness.core.params import Record
from harness.core.records import SCHEMA_VERSION, Blame, CaseResult, FaultResult, Shrunk, Verdict
from harness.core.stored import NoFile, append_line, read_json, read_records, record_of, set_aside
from harness.scenario.schema import FaultUse
from harness.store.source import Source

DEFAULT_RUNS = Path("reports") / "runs"
MOST_LETTERS = 200
"""The longest name of a case's folder. A file system allows 255 bytes."""

RESULTS = "results.jsonl"
LINES = "*.jsonl"
"""The files of a run folder with a record on each line."""
ANSWERS = "accuracy"
"""In a run folder: a folder for each measured case, with its answers."""
RecordT = TypeVar("RecordT", bound=Record)


class Control(Record):
    """A case with an injected fault, run beside the clean cases to prove that they can fail."""

    use: FaultUse
    job: Job


class ShardNote(Record):
    """Part `index` of `count` of a plan, and the keys of the whole plan in its order."""

    index: int
    count: int
    keys: tuple[str, ...]
    controls: tuple[str, ...] = ()


class _Open(BaseModel):
    """Facts that reports read, and others. They may be more, as in the plans of other versions."""

    model_config = ConfigDict(extra="allow")


class _Options(_Open):
    device: str = "auto"
    kernel: list[str] = []
    plugins: list[str] = []
    fault: str | None = None
    seed: int = 0
    scenarios: str | None = None
    engine_path: str | None = None
    epochs: dict[str, Any] = {}


class _Gpu(_Open):
    name: str


class _Machine(_Open):
    gpus: list[_Gpu] = []
    engines: dict[str, str] = {}
    engine_paths: dict[str, str] = {}
    variables: dict[str, str] = {}


def _checked(kind: type[_Open], facts: dict[str, Any]) -> dict[str, Any]:
    """The facts as they are. Raises ValueError if one that reports read is of another type."""
    kind.model_validate(facts)
    return facts


class RunPlan(Record):
    """The plan of a run (`run.json`). Machine and seconds are added while it runs."""

    schema_version: int = SCHEMA_VERSION
    run_id: str
    started: str
    command: str
    options: dict[str, Any] = Field(default={})
    """The options that decide outcomes besides the case ids: fault, kernel, seed, plug-ins, device.
    """
    source: Source = Source()
    """The git commit and branch of the code under test."""
    jobs: tuple[Job, ...]
    kernels: tuple[KernelSpec, ...] = ()
    """The judged kernels that did not come with the harness, without their code: no later command
    imports a plug-in.
    """
    controls: tuple[Control, ...] = ()
    is_selftest: bool = False
    """Whether it is a selftest: its controls are blamed by trials."""
    sanitizer: str | None = None
    """The tool of compute-sanitizer that watches the case."""
    shard: ShardNote | None = None
    num_long: int = 0
    """How many long cases a run of everything left out."""
    trials: dict[str, Any] | None = None
    """The request of a run of mutants, which has no jobs of its own."""
    environment: dict[str, Any] = Field(default={})
    seconds: float = 0.0

    @field_validator("options")
    @classmethod
    def _readable_options(cls, value: dict[str, Any]) -> dict[str, Any]:
        # A report must not fail in its middle because someone edited the file.
        return _checked(_Options, value)

    @field_validator("environment")
    @classmethod
    def _readable_environment(cls, value: dict[str, Any]) -> dict[str, Any]:
        return _checked(_Machine, value)


class BlameLine(Record):
    """One line of `blame.jsonl`: which memory was to blame for one failing job."""

    schema_version: int = SCHEMA_VERSION
    key: str
    blame: Blame


def new_run_id(now: datetime | None = None) -> str:
    """A name that sorts by time: UTC timestamp, then the part of the second in four hex digits."""
    now = now or datetime.now(UTC)
    return f"{now:%Y%m%dT%H%M%SZ}-{now.microsecond * 65536 // 1_000_000:04x}"


class RunStore:
    """One run directory.

    `results.jsonl` is the truth; every report is made again from this class alone.
    """

    def __init__(self, path: Path, plan: RunPlan) -> None:
        self.path = path
        self.plan = plan

    @classmethod
    def create(cls, root: Path, jobs: Iterable[Job], *, command: str, **plan: Any) -> RunStore:
        """Make the directory of a new run below `root` and write its plan; `plan` are further
        fields of RunPlan.
        """
        # Two runs may begin in one moment; a folder is never shared.
        while (path := root / (run_id := new_run_id())).exists():
            pass
        try:
            path.mkdir(parents=True)
        except OSError as error:
            raise InputError(
                f"{path}: cannot be created: {error.strerror}; choose another --out"
            ) from None
        started = datetime.now(UTC).isoformat(timespec="seconds")
        jobs = tuple(jobs)
        # Their promises are stored, because a later command must not import a user's file.
        # The plan of a merged run brings the kernels of all shards.
        plan = {"kernels": _foreign_kernels(jobs)} | plan
        store = cls(
            path, RunPlan(run_id=run_id, started=started, command=command, jobs=jobs, **plan)
        )
        store._change_plan()
        return store

    @classmethod
    def open(cls, path: Path) -> RunStore:
        """Open a run that exists.

        Raises InputError when it is none, or written by a newer version.
        """
        file = path / "run.json"
        try:
            raw = read_json(file)
        except NoFile:
            raise InputError(f"{path}: not a run directory (it has no run.json)") from None
        return cls(path, record_of(RunPlan, raw, file))

    def mend(self) -> dict[Path, int]:
        """Take out the lines that cannot be read, so that their part of the run is done again.

        Returns the number of these lines for each file that had some. The file as it was is kept
        beside it.
        """
        counts = {file: set_aside(file) for file in sorted(self.path.rglob(LINES))}
        return {file: count for file, count in counts.items() if count}

    def note_environment(self, environment: dict[str, Any]) -> None:
        self._change_plan(environment=environment)

    def note_source(self, now: Source) -> None:
        """Store the code of a run that begins, or that a resumed run goes on with the code
        `now`.
        """
        is_new = self.plan.source == Source() and not self.finished()
        self._change_plan(source=now if is_new else self.plan.source.continued(now))

    def add_seconds(self, seconds: float) -> None:
        """Add the time of this stretch; a resumed run has several."""
        self._change_plan(seconds=round(self.plan.seconds + seconds, 3))

    def add(self, result: CaseResult) -> None:
        """Append one result; a process that ends does not lose it."""
        self._append(RESULTS, result)

    def add_tried(self, result: CaseResult) -> None:
        """Append the result of a case with a fault of a selftest.

        It is judged later, when the blame is known.
        """
        self._append("tried.jsonl", result)

    def add_fault(self, result: FaultResult) -> None:
        self._append("faults.jsonl", result)

    def add_blame(self, key: str, blame: Blame) -> None:
        self._append("blame.jsonl", BlameLine(key=key, blame=blame))

    def add_shrunk(self, shrunk: Shrunk) -> None:
        self._append("shrunk.jsonl", shrunk)

    def finished(self) -> dict[str, CaseResult]:
        """The results on disk by job key; a later result of a job replaces an earlier one."""
        return {result.key: result for result in self._read(RESULTS, CaseResult)}

    def results(self) -> list[CaseResult]:
        """One result for each planned job, in the order of the plan; `not-run` for a job without
        one.
        """
        finished = self.finished()
        # A case without a result is said to have none: a gap would read as a pass.
        why = "not run: the run ended before this case"
        if num_lost := unreadable.num_lines(self.path / RESULTS):
            why = f"no result: {num_lost} of the lines of {RESULTS} cannot be read"
        return [
            finished.get(job.key) or CaseResult.of(job, Verdict.NOT_RUN, reason=why)
            for job in self.plan.jobs
        ]

    def unfinished(self) -> list[Job]:
        done = self.finished()
        return [job for job in self.plan.jobs if job.key not in done]

    def tried(self) -> dict[str, CaseResult]:
        return {result.key: result for result in self._read("tried.jsonl", CaseResult)}

    def skipped_faults(self) -> list[dict[str, Any]]:
        """The faults that could not be tried here: `{fault, case, reason, cause}` of each."""
        tried = self.tried()
        found = [
            tried[control.job.key] for control in self.plan.controls if control.job.key in tried
        ]
        skipped = (one for one in found if one.verdict is Verdict.SKIP)
        return [
            {"fault": one.fault, "case": one.id, "reason": one.reason, "cause": one.cause}
            for one in skipped
        ]

    def unfinished_controls(self) -> list[Control]:
        """The controls that are not judged yet, except skipped ones."""
        finished = {(fault.fault, fault.case) for fault in self.faults()}
        finished |= {(one["fault"], one["case"]) for one in self.skipped_faults()}
        return [
            control
            for control in self.plan.controls
            if (control.use.name, control.job.case.id) not in finished
        ]

    def untried_controls(self) -> list[Control]:
        """The controls that still have to be run.

        Their results are stored before they are judged.
        """
        tried = self.tried()
        return [control for control in self.unfinished_controls() if control.job.key not in tried]

    def faults(self) -> list[FaultResult]:
        """The judgements of faults; a later one of a fault and case replaces an earlier one."""
        lines = self._read("faults.jsonl", FaultResult)
        return list({(line.scenario, line.fault, line.case): line for line in lines}.values())

    def blames(self) -> dict[str, Blame]:
        return {line.key: line.blame for line in self._read("blame.jsonl", BlameLine)}

    def shrunk(self) -> dict[str, Shrunk]:
        return {line.key: line for line in self._read("shrunk.jsonl", Shrunk)}

    def placed(self, job: Job) -> Job:
        """`job` with a folder of this run for its progress, if it measures accuracy."""
        if not job.case.kind.asks_canary:
            return job
        name = re.sub(r"[^A-Za-z0-9_.=]+", "-", job.key).strip("-")
        if len(name) > MOST_LETTERS:
            # File systems limit a name to 255 bytes; the hash keeps two long keys apart.
            name = f"{name[:MOST_LETTERS]}-{hashlib.sha256(job.key.encode()).hexdigest()[:12]}"
        return job.but(directory=str(self.path.resolve() / ANSWERS / name))

    def jobs_by_key(self) -> dict[str, Job]:
        return {job.key: job for job in self.plan.jobs}

    def _append(self, name: str, record: Record) -> None:
        append_line(self.path / name, json.dumps(record.model_dump(mode="json"), allow_nan=False))

    def _read(self, name: str, kind: type[RecordT]) -> list[RecordT]:
        return read_records(self.path / name, kind)

    def _change_plan(self, **changes: Any) -> None:
        # Someone deleted the folder while it was written; a new plan alone would look like a whole
        # run.
        if changes and not (self.path / "run.json").exists():
            raise GoneError(self.path)
        self.plan = self.plan.but(**changes)
        # Pydantic's own encoder is faster, but refuses a path whose bytes are no text.
        text = json.dumps(self.plan.model_dump(mode="json"), allow_nan=False, indent=1)
        write_atomic(self.path / "run.json", text + "\n")


def _foreign_kernels(jobs: Iterable[Job]) -> tuple[KernelSpec, ...]:
    """The kernels of `jobs` that did not come with the harness, with all that share their names,
    without their code.
    """
    names = {name for job in jobs for name in job.case.kernels().values()}
    # A planner has the name of its kernel.
    short_names = {name.partition("/")[2] for name in names}
    own = (spec for spec in KERNELS if spec.short_name in short_names and spec.origin != BUILT_IN)
    return tuple(replace(spec, impl="") for spec in own)


def folders_with(name: str, root: Path) -> list[Path]:
    """The folders in `root` that have a file of that name, in order.

    A link that leads nowhere counts, to be refused.

    Without `root` there are none.
    """
    try:
        # Names begin with the time, so the order of names is the order of runs.
        return sorted(folder for folder in root.iterdir() if os.path.lexists(folder / name))
    except (FileNotFoundError, NotADirectoryError):
        return []


def find_run(name: str, root: Path = DEFAULT_RUNS) -> Path:
    """The run directory that `name` means: a path, a run id, or `latest`. Raises InputError."""
    runs = folders_with("run.json", root)
    if name == "latest" and runs:
        return runs[-1]
    for path in (Path(name), root / name):
        if os.path.lexists(path / "run.json"):
            return path
    there = (
        f"the latest in {root} is {runs[-1].name}"
        if runs
        else f"{root} holds no run yet: mla-harness run"
    )
    raise InputError(f"no run {name!r}: give a run directory, a run id or 'latest'; {there}")
