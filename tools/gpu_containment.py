"""Four kernels that break a GPU process, each between two good cases; prints what became of each as JSON."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from harness.core.cases import Case, Job
from harness.run.runner import WorkerPool
from harness.scenario.load import load_scenarios
from harness.scenario.selection import select

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "kernels"
ORDER = ("good", "illegal-address", "good", "device-assert", "good", "out-of-memory", "good", "hangs", "good")
HANG_SECONDS = 8.0


def with_kernel(case: Case, kernel: str) -> Case:
    """`case` with another kernel."""
    return case.model_copy(update={"params": case.params.model_copy(update={"kernel": kernel})})


def main() -> None:
    case = select(load_scenarios(), ["decode-kernel"])[0]

    def job(place: int, name: str) -> Job:
        is_good = name == "good"
        kernel = "triton" if is_good else f"cuda-{name}"
        plugins = () if is_good else (str(FIXTURES / f"cuda_{name.replace('-', '_')}.py"),)
        return Job(
            key=f"{place}-{name}", case=with_kernel(case, kernel),
            device="cuda", plugins=plugins, timeout_seconds=60.0 if is_good else HANG_SECONDS,
        )  # fmt: skip

    found: list[dict[str, Any]] = []
    with WorkerPool(2) as pool:
        for result in pool.run([job(place, name) for place, name in enumerate(ORDER)]):
            found.append({
                "kernel": result.key.partition("-")[2], "verdict": result.verdict.value, "reason": result.reason,
                "finding": result.findings[0].message if result.findings else "", "seconds": round(result.seconds, 2),
            })  # fmt: skip
    print(json.dumps(found))


if __name__ == "__main__":
    main()
