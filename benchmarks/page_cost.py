"""What the page of a run costs: bytes, seconds to write it, and milliseconds to its first paint.

    python benchmarks/page_cost.py 1400 14000

The cases are those of the kernel matrix, nine of ten passing. Results are made up: no kernel runs.
The first paint is measured if playwright and a Chromium are there.
"""

from __future__ import annotations

import random
import shutil
import sys
import tempfile
import time
from pathlib import Path

from harness.core.cases import Job
from harness.core.records import CaseResult, Verdict
from harness.report import page
from harness.report.run_view import RunView
from harness.scenario.expand import expand
from harness.scenario.load import load_scenarios
from harness.store.run_folder import RunStore

BROWSERS = ("chromium", "google-chrome", "chromium-browser")


def run_of(num_cases: int, root: Path) -> RunStore:
    """A finished run with as many cases of the kernel matrix."""
    cases = [
        case
        for scenario in load_scenarios()
        if "kernel-matrix" in scenario.name
        for case in expand(scenario)
    ]
    jobs = [Job(key=case.id, case=case) for case in cases[:num_cases]]
    store = RunStore.create(root, jobs, command="mla-harness run -m kernel-matrix", options={})
    drawn = random.Random(1)
    for job in jobs:
        verdict = drawn.choices([Verdict.PASS, Verdict.SKIP], [9, 1])[0]
        reason = "" if verdict is Verdict.PASS else "vLLM is not installed (pip install '.[vllm]')"
        store.add(CaseResult.of(job, verdict, seconds=drawn.random(), reason=reason))
    return store


def first_paint(file: Path) -> float | None:
    """Milliseconds to the first content in a browser; None without one."""
    try:
        from playwright.sync_api import sync_playwright
    except ImportError:
        return None
    program = next(filter(None, map(shutil.which, BROWSERS)), None)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        tab = browser.new_page(viewport={"width": 1400, "height": 900})
        tab.goto(file.as_uri())
        found = tab.evaluate("performance.getEntriesByName('first-contentful-paint')[0]?.startTime")
        browser.close()
    return None if found is None else float(found)


def main() -> None:
    for number in map(int, sys.argv[1:] or ["1400"]):
        with tempfile.TemporaryDirectory() as folder:
            store = run_of(number, Path(folder))
            started = time.perf_counter()
            text = page.render(RunView(store))
            seconds = time.perf_counter() - started
            file = store.path / "report.html"
            file.write_text(text, encoding="utf-8")
            paint = first_paint(file)
            shown = "no browser" if paint is None else f"first paint after {paint:.0f} ms"
            size = len(text.encode()) / 1e6
            count = f"{len(store.plan.jobs):,} cases"
            print(f"{count}: {size:.2f} MB, written in {seconds:.1f} s, {shown}")


if __name__ == "__main__":
    main()
