"""A run of stub cases in a process of its own, for tests that interrupt or kill it: `stub_run.py OUT SECONDS [RUN]`."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from harness.cli.run import perform
from harness.records import Case, Job
from harness.results.store import RunStore
from harness.run.ray_pool import RayPool
from harness.run.runner import WorkerPool


def main() -> None:
    """Plan eight cases of SECONDS each, or continue RUN; print its directory first."""
    out, seconds = Path(sys.argv[1]), float(sys.argv[2])
    stub = str(Path(__file__).parents[1] / "run")
    if len(sys.argv) > 3:
        store = RunStore.open(Path(sys.argv[3]))
    else:
        cases = [Case(id=f"stub[n={n}]", scenario="stub", system="stub", params={"seconds": seconds}) for n in range(8)]
        store = RunStore.create(out, [Job(key=case.id, case=case) for case in cases], command="stub")
    print(store.path, flush=True)
    stubs: dict[str, Any] = {"execute": "stub_execute:execute", "environ": {"PYTHONPATH": stub}}
    address = os.environ.get("STUB_RAY_ADDRESS")
    with RayPool(address, **stubs) if address else WorkerPool(2, **stubs) as pool:
        sys.exit(perform(store, pool, as_json=False))


if __name__ == "__main__":
    main()
