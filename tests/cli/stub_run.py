"""A run of stub cases in a process of its own, for tests that interrupt or kill it:

`stub_run.py OUT HELD [RUN]`.

The case with the number HELD, and all after it, wait until OUT has a file `go`: so a test decides
how far a run gets. With `STUB_SELFTEST` set it is a selftest: two clean cases, and six with a fault
that they show.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from harness.cli import run, selftest
from harness.core.cases import Case, Job
from harness.core.catalog import FAULTS
from harness.run.ray_pool import RayPool
from harness.run.runner import WorkerPool
from harness.scenario.schema import FaultUse
from harness.store.run_folder import Control, RunStore
from tests.waiting import HANG_SECONDS


def stub_case(number: int, does: str, until: Path | None = None) -> Case:
    """A case that does what `tests/run/stub_execute.py` knows, once the file `until` is there."""
    tags = (f"does={does}",) if until is None else (f"does={does}", f"until={until}")
    return Case(id=f"stub[n={number}]", scenario="stub", system="kernel", op="write_kv", tags=tags)


def planned_selftest(
    out: Path, does: list[str], faulty: list[str], held: int = 0, go: Path | None = None
) -> RunStore:
    """A selftest of stub cases: one clean case for each word of `does`, one with a fault for each
    of `faulty`.

    The case `held` and all after it wait for the file `go`.
    """
    cases = [
        stub_case(n, word, go if n >= held else None) for n, word in enumerate([*does, *faulty])
    ]
    uses = [
        FaultUse(name=name, caught_by="finite", blames=("output",))
        for name in FAULTS.names()[: len(faulty)]
    ]
    controls = [
        Control(
            use=use,
            job=Job(
                key=f"{case.id}!{use.name}", case=case, fault=use.name, timeout_seconds=HANG_SECONDS
            ),
        )
        for use, case in zip(uses, cases[len(does) :], strict=True)
    ]
    jobs = [
        Job(key=case.id, case=case, timeout_seconds=HANG_SECONDS) for case in cases[: len(does)]
    ]
    return RunStore.create(out, jobs, command="stub", controls=controls, is_selftest=True)


def main() -> None:
    """Plan eight cases, or continue RUN; print its directory first."""
    out, held = Path(sys.argv[1]), int(sys.argv[2])
    go = out / "go"
    stub = str(Path(__file__).parents[1] / "run")
    is_selftest = "STUB_SELFTEST" in os.environ
    if len(sys.argv) > 3:
        store = RunStore.open(Path(sys.argv[3]))
    elif is_selftest:
        store = planned_selftest(out, ["pass"] * 2, ["fail"] * 6, held, go)
    else:
        does = os.environ.get("STUB_DOES", "pass")
        cases = [stub_case(n, does, go if n >= held else None) for n in range(8)]
        jobs = [Job(key=case.id, case=case, timeout_seconds=HANG_SECONDS) for case in cases]
        store = RunStore.create(out, jobs, command="stub")
    print(store.path, flush=True)
    stubs: dict[str, Any] = {"execute": "stub_execute:execute", "environ": {"PYTHONPATH": stub}}
    address = os.environ.get("STUB_RAY_ADDRESS")
    with RayPool(address, **stubs) if address else WorkerPool(2, **stubs) as pool:
        if is_selftest:
            sys.exit(selftest.finish(store, pool, as_json=False))
        sys.exit(run.finish(store, pool, run.RunOptions()))


if __name__ == "__main__":
    main()
