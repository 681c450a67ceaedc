"""What commands that make a run share: the pool of workers, the work, a clean stop, the reports and the exit code."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from rich.console import Console

from harness.cli.recording import keep
from harness.cli.resuming import command_to_resume
from harness.core.errors import INTERRUPTED, HarnessError, InputError
from harness.core.records import Verdict
from harness.diagnose.perform import carry_out, diagnose, judge_faults
from harness.report.terminal import LiveProgress
from harness.report.write import write_reports
from harness.run.pool import Pool
from harness.run.ray_pool import RayPool
from harness.run.runner import WorkerPool
from harness.store.run_folder import RunStore

NOTHING_RAN = "nothing ran: every selected case was skipped; see the reasons above"
LOCAL, RAY = "local", "ray"


def pool_for(executor: str, ray_address: str | None, workers: int | None) -> Pool:
    """The pool that the options ask for; `workers` limits it. Raises InputError for options that do not fit."""
    if executor not in (LOCAL, RAY):
        raise InputError(f"--executor {executor}: unknown executor; choose one of {LOCAL}, {RAY}")
    if executor == LOCAL:
        if ray_address is not None:
            raise InputError("--ray-address: is for --executor ray; add it, or leave the address out")
        return WorkerPool(workers)
    return RayPool(ray_address or os.environ.get("RAY_ADDRESS") or None, workers)


def work_on(store: RunStore, pool: Pool, screen: Console, *, shrink_seconds: float = 0.0) -> None:
    """Run what is left of a planned run, judge its faults, and diagnose its failures."""
    with LiveProgress(screen, len(store.unfinished()) + len(store.untried_controls())) as live:
        carry_out(store, pool, live)
    with screen.status("looking for the memory to blame"):
        judge_faults(store, pool)
        diagnose(store, pool, shrink_seconds=shrink_seconds)


def perform(
    store: RunStore,
    work: Callable[[], None],
    *,
    stop: Callable[[], None],
    tell: Callable[[], int],
    history: Path | None,
    settle: Callable[[str], None] = lambda ended: None,
) -> int:
    """Do the `work` of a run, write its reports whatever ends it, and return the exit code.

    `stop` ends the workers after Ctrl-C. `settle` stores what is left to store, given the words for what ended the work
    early. `tell` prints the run and returns the code of a run that came to its end. `history` is the file that the
    results are added to, None for none. Raises InputError as it comes, before anything is written.
    """
    ended, code = "", 0
    try:
        with stoppable(store):
            work()
    except KeyboardInterrupt:
        ended, code = "interrupted", INTERRUPTED
        stop()
    except InputError:
        raise
    except HarnessError as error:
        ended, code = " ".join(str(error).split()), error.exit_code
    settle(ended)
    write_reports(store, keep(store, history))
    own_code = tell()
    if ended:
        print(f"{ended}; continue with: {command_to_resume(store)}", file=sys.stderr)
    if code == 0 and own_code == 2:
        print(NOTHING_RAN, file=sys.stderr)
    return code or own_code


@contextmanager
def stoppable(store: RunStore) -> Iterator[None]:
    """Time this stretch of a run, and let SIGTERM end it as Ctrl-C does: orderly, with what there is."""

    def stop(signum: int, frame: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGTERM, stop)
    started = time.monotonic()
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)
        store.add_seconds(time.monotonic() - started)


def is_all_skipped(verdicts: list[Verdict]) -> bool:
    """Whether there are results, and each of them is a skip."""
    return bool(verdicts) and all(verdict is Verdict.SKIP for verdict in verdicts)
