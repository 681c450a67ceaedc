"""Run each test under poison, and add findings about uninitialised memory to its report."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from harness.memory.poison.marks import describe, short
from harness.pytest.poison.process import end_of_test
from harness.pytest.poison.process.observation import PoisonFound
from harness.pytest.poison.process.passes import SECTION, lost_cuda, run_item
from harness.pytest.poison.process.watch import Watch
from harness.pytest.poison.settings import Settings

MAX_FINDINGS = 5
MAX_ORIGINS = 3
OWNERS = {"code": "allocated by the code under test:", "tests": "allocated by the test:"}


class Judge:
    """Runs the tests of one process under poison, from its creation to `stop`."""

    def __init__(self, settings: Settings, root: Path) -> None:
        self._watch = Watch(settings, root)

    def stop(self) -> None:
        self._watch.poison.remove()

    def note_collected(self, paths: set[str]) -> None:
        self._watch.test_files.collected.update(paths)

    def run(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        return run_item(self._watch, item, nextitem)

    def judge(self, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
        """Fail a test that passed on uninitialised memory, and explain a failed one."""
        seen = self._watch.observation
        if seen is None or call.when != "call":
            return
        counts = seen.counts
        counts.filled = self._watch.poison.filled - seen.filled_before
        report.__dict__["poison"] = sums = {
            "tests": 1,
            "filled": counts.filled,
            "compared": counts.compared,
            "elements": counts.elements,
            "unreadable": counts.unreadable,
        }
        if self._watch.not_swept:
            report.__dict__["poison_note"] = self._watch.not_swept
        reason = lost_cuda()
        if reason:
            # The device cannot be read any more.
            if report.passed:
                report.outcome = "failed"
                report.longrepr = f"this test left CUDA unusable, and ended before that showed: {reason}"
        elif report.passed and not hasattr(report, "wasxfail"):
            found = [*seen.found, *(end_of_test.judge(seen) if not seen.found else [])]
            if found:
                report.outcome = "failed"
                lines = ["this test passes on uninitialised memory:", *sentences(found)]
                report.longrepr = "\n".join(lines)
                report.__dict__["poison_found"] = True
                sums["found"] = 1
        elif report.failed and call.excinfo is not None:
            held = seen.found or end_of_test.in_traceback(seen, call.excinfo.tb)
            if held:
                report.sections.append((SECTION, "\n".join(sentences(held))))
                report.__dict__["poison_held"] = True


def sentences(found: Sequence[PoisonFound]) -> list[str]:
    """Lines for all different findings, each with the stack of its allocation."""
    unique = list(dict.fromkeys(found))
    lines: list[str] = []
    for one in unique[:MAX_FINDINGS]:
        lines.append(
            f"{one.what} at {short(one.where)} holds uninitialised memory, or values computed from it: "
            f"{one.count} of {one.total} elements, first at {list(one.index)}, bits {one.bits}"
        )
        lines += _origin(one)
    if len(unique) > MAX_FINDINGS:
        lines.append(f"and {len(unique) - MAX_FINDINGS} more findings")
    return lines


def _origin(one: PoisonFound) -> list[str]:
    if one.owner is None:
        return ["  it was free CUDA memory before the test, and no allocation through torch's dispatcher"]
    if not one.origins:
        return ["  its line is not known: it was allocated before this test"]
    lines = [f"  {OWNERS[one.owner]}"]
    if len(one.origins) > 1:
        lines.append(f"  one of {len(one.origins)} lines, as a 6-bit mark does not tell which:")
    for stack in one.origins[:MAX_ORIGINS]:
        first, *rest = map(describe, stack)
        lines += [f"    {short(first)}", *(f"      from {short(line)}" for line in rest)]
    return lines
