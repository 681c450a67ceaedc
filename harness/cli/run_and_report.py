"""Run the cases of a plan, write the reports and print them, also after an early end; and continue
a run.
"""

from __future__ import annotations

import os
import shlex
import signal
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import typer
from rich.console import Console

from harness.cli.output import warn
from harness.cli.shared_options import LOCAL, NO_HISTORY, command_line
from harness.core.cases import Job
from harness.core.cause_codes import Code
from harness.core.errors import INTERRUPTED, GoneError, HarnessError, InputError, NoRoomError
from harness.core.fault_outcomes import MISSED
from harness.core.records import BAD, CaseResult, Verdict
from harness.core.stored import DAMAGED
from harness.diagnose.run_jobs import diagnose, judge_faults, run_jobs
from harness.report.progress import LiveProgress, Waiting
from harness.report.run_view import RunView, unjudged_kernels
from harness.report.terminal import verdict_text
from harness.report.wording import num, one_line, printable
from harness.report.write import write_reports
from harness.run.environment import import_first
from harness.run.planning import Wanted
from harness.run.pool import JobPool
from harness.run.runner import WorkerPool
from harness.store.history.entry import PastRuns
from harness.store.run_folder import DEFAULT_RUNS, RunStore, find_run
from harness.store.source import Source, read_source

PLANNING = "planning the cases"
NOTHING_RAN = "nothing ran: every selected case was skipped; see the reasons above"
RAY = "ray"

NOT_OF_THE_PLAN = {
    "resume",
    "out",
    "workers",
    "per_gpu",
    "executor",
    "ray_address",
    "shrink_seconds",
    "engine",
    "seconds",
    "quiet",
    "verbose",
    "first_failure",
    "max_failures",
    "keep_going",
    "fail_on",
    "against",
    "history",
    "commit",
    "branch",
    "json",
}
"""Parameters of commands that may change when a run is continued."""


def pool_for(
    executor: str, ray_address: str | None, workers: int | None, per_gpu: int = 1
) -> JobPool:
    """The pool that the options ask for, with at most `workers`, and `per_gpu` on one GPU.

    Raises InputError for options that do not fit.
    """
    if executor not in (LOCAL, RAY):
        raise InputError(f"--executor {executor}: unknown executor; choose one of {LOCAL}, {RAY}")
    if executor == LOCAL:
        if ray_address is not None:
            raise InputError(
                "--ray-address: is for --executor ray; add it, or leave the address out"
            )
        return WorkerPool(workers, per_gpu=per_gpu)
    if per_gpu > 1:
        raise InputError("--per-gpu: is for workers of this machine; leave out --executor")
    # Only a run on several nodes needs what it takes to reach them.
    from harness.run.ray_pool import RayPool

    return RayPool(ray_address or os.environ.get("RAY_ADDRESS") or None, workers)


def source_under_test(commit: str = "", branch: str = "", plugins: tuple[Path, ...] = ()) -> Source:
    """The code under test: the repository of the first plug-in, or of the working directory."""
    folder = plugins[0].parent if plugins else Path.cwd()
    return read_source(folder, os.environ, commit=commit, branch=branch)


class EachCase(LiveProgress):
    """Prints every case as it ends, and all that a bad one printed, with its traceback."""

    def on_result(self, result: CaseResult, *, announce: bool = True) -> None:
        if result.verdict not in BAD:
            word, reason = result.verdict.value, one_line(result.reason, 200)
            if result.fault and result.verdict is Verdict.PASS:
                # A case that passes with an injected bug does not see it.
                word, reason = MISSED, "passes with the bug"
            self._console.print(verdict_text(word), result.key, f"{result.seconds:.1f} s", reason)
        super().on_result(result, announce=announce)
        for line in printable(result.log).strip().splitlines():
            self._console.print("  | " + line, style="dim", soft_wrap=True)


class Stopped(HarnessError):
    """A run ended early, because as many cases failed as its options allow."""

    exit_code = 1


def work_on(
    store: RunStore,
    pool: JobPool,
    screen: Console,
    *,
    shrink_seconds: float = 0.0,
    max_failures: int | None = None,
    keep_going: bool = False,
    most_causes: int | None = None,
    loudness: int = 0,
) -> None:
    """Run what is left of a planned run, judge its faults, and diagnose its failures.

    A `loudness` of -1 prints a line for each failure, 1 for each case. Raises Stopped at the end if
    cases are left after `max_failures` bad ones.
    """
    num_left = len(store.unfinished()) + len(store.untried_controls())
    progress = EachCase if loudness > 0 else LiveProgress
    with progress(screen, num_left, every_failure=loudness < 0) as live:
        run_jobs(
            store,
            pool,
            live,
            max_failures=max_failures,
            keep_going=keep_going,
            most_causes=most_causes,
        )
    with Waiting(screen, "looking for the memory to blame", pool):
        judge_faults(store, pool)
        diagnose(store, pool, shrink_seconds=shrink_seconds)
    if max_failures is not None and (
        left := len(store.unfinished()) + len(store.untried_controls())
    ):
        raise Stopped(
            f"stopped after {num(max_failures, 'failure')}, with {num(left, 'case')} left"
        )


def work_and_report(
    store: RunStore,
    work: Callable[[], None],
    *,
    stop: Callable[[], None],
    report: Callable[[RunView], int],
    before_report: Callable[[str], None] = lambda ended: None,
) -> int:
    """Do the `work` of a run, write its reports even if the work ends early, and return the exit
    code.

    `stop` ends the workers after Ctrl-C. `before_report` gets the reason for an early end, or an
    empty string, and stores what is left. `report` gets the view of the reports, prints the run and
    returns the exit code of a complete run. Raises an InputError of the work, unless a failure was
    seen before it, and GoneError if the folder of the run was deleted.
    """
    ended = ""
    code = 0
    try:
        with stoppable(store):
            work()
    except KeyboardInterrupt:
        ended = "interrupted"
        code = INTERRUPTED
        # The workers hold GPUs and memory, which the reports do not need.
        stop()
    except GoneError:
        raise
    except HarnessError as error:
        if isinstance(error, InputError) and not any(
            result.verdict in BAD for result in store.results()
        ):
            raise
        ended = " ".join(str(error).split())
        code = error.exit_code
    own_code = 0
    try:
        before_report(ended)
        view = RunView(store)
        write_reports(view)
        own_code = report(view)
    except KeyboardInterrupt:
        # The results are stored. Going on writes the reports.
        ended = "interrupted"
        code = INTERRUPTED
    except NoRoomError as error:
        ended = ended or str(error)
        code = error.exit_code
    if ended:
        print(f"{ended}; continue with: {command_to_resume(store)}", file=sys.stderr)
    if code == 0 and own_code == 2:
        print(nothing_shown(store), file=sys.stderr)
    return code or own_code


def refusing_kernels(store: RunStore) -> list[str]:
    """The kernels of a user that refused cases and had none judged: such a run proves nothing about
    them.
    """
    is_about_kernels = store.plan.options.get("plugins") or store.plan.options.get("kernel")
    return unjudged_kernels(store.results(), store.jobs_by_key()) if is_about_kernels else []


@contextmanager
def stoppable(store: RunStore) -> Iterator[None]:
    """Add the time of this block to the run, and let SIGTERM end the block as Ctrl-C does."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        store.add_seconds(time.monotonic() - started)


def as_last_failed(wanted: Wanted, root: Path) -> tuple[Wanted, frozenset[str]]:
    """What to select so that the cases that failed in the newest run can be run again, and their
    ids.

    Options that the user does not give are as in that run. Raises InputError if nothing failed in
    it.
    """
    store = RunStore.open(find_run("latest", root))
    failed = [result.id for result in store.results() if result.verdict in BAD]
    if not failed:
        raise InputError(f"--last-failed: no case failed in {store.path.name}")
    old = store.plan.options
    then = Wanted(
        selectors=tuple(failed),
        device=old.get("device", "auto"),
        kernels=tuple(old.get("kernel") or ()),
        plugins=tuple(map(Path, old.get("plugins") or ())),
        fault=old.get("fault"),
        seed=old.get("seed", 0),
        scenarios=Path(old["scenarios"]) if old.get("scenarios") else None,
        engine_path=wanted.engine_path or _engine_path_of(store),
    )
    # Only what differs from a default: typer does not tell an option that was given its default.
    given = {
        one.name: getattr(wanted, one.name)
        for one in fields(wanted)
        if getattr(wanted, one.name) != one.default
    }
    return replace(then, **given), frozenset(failed)


def nothing_shown(store: RunStore) -> str:
    """Why a run ends in 2: nothing ran, a kernel that it was asked to judge refused all, or nothing
    could be shown.
    """
    if names := refusing_kernels(store):
        return (
            f"nothing was judged: {', '.join(names)} refused every case that could run; see the"
            " reasons above"
        )
    ran = any(result.cause == Code.POWERLESS for result in store.results())
    return (
        "nothing was shown: no measurement could have seen a loss; see the reasons above"
        if ran
        else NOTHING_RAN
    )


def is_all_skipped(verdicts: list[Verdict]) -> bool:
    """Whether there are results, and each of them is a skip."""
    return bool(verdicts) and all(verdict is Verdict.SKIP for verdict in verdicts)


def past_runs(history: str | None, root: Path | None = None) -> PastRuns | None:
    """The runs in the folder that `--history` names, or else in `root`; None for `none`."""
    return (
        None
        if history == NO_HISTORY
        else PastRuns(Path(history) if history else root or DEFAULT_RUNS)
    )


def command_to_resume(store: RunStore) -> str:
    kind = "survey" if store.plan.command.startswith("mla-harness survey") else _kind(store)
    return shlex.join(["mla-harness", kind, "--resume", str(store.path)])


def to_resume(
    context: typer.Context, name: str | None, out: Path | None, command: str
) -> RunStore | None:
    """The run that `--resume` names, or None.

    Raises InputError unless `command` (run, selftest, mutants or epochs) began it.

    Options of the plan are refused, even with their default values.
    """
    if name is None:
        return None
    changed = []
    for parameter in context.command.params:
        option = parameter.name or ""
        source = context.get_parameter_source(option)
        is_argument = parameter.param_type_name == "argument"
        # For click an argument without a value was given on the command line too.
        is_given = (
            source is not None
            and source.name == "COMMANDLINE"
            and not (is_argument and not context.params[option])
        )
        if is_given and option not in NOT_OF_THE_PLAN:
            changed.append("a selector" if is_argument else parameter.opts[0])
    if changed:
        raise InputError(
            f"--resume: continues the run as it was planned; leave out {', '.join(changed)}"
        )
    store = RunStore.open(find_run(name, out or DEFAULT_RUNS))
    if (kind := _kind(store)) != command:
        raise InputError(
            f"{store.path}: a run of `{kind}`; continue it with: {command_to_resume(store)}"
        )
    for file, count in store.mend().items():
        kept = f"the file is kept as {file.name}{DAMAGED}"
        warn(
            f"{file}: {num(count, 'line')} could not be read; what was there is done again; {kept}"
        )
    _engine_path_of(store)
    return store


def planned(root: Path | None, wanted: Wanted, jobs: Iterable[Job], **plan: Any) -> RunStore:
    """A new run of `jobs` below `root`; `plan` are further fields of its plan."""
    command = command_line()
    options = wanted.reproduction()
    return RunStore.create(root or DEFAULT_RUNS, jobs, command=command, options=options, **plan)


def _engine_path_of(store: RunStore) -> Path | None:
    """The run's folder of engines, which are imported from there now too; None if it had none."""
    path = store.plan.options.get("engine_path")
    if path:
        import_first(Path(path))
    return Path(path) if path else None


def _kind(store: RunStore) -> str:
    if "epochs" in store.plan.options:
        return "epochs"
    if store.plan.trials:
        return "mutants"
    return "selftest" if store.plan.is_selftest else "run"
