"""One test, run once for each poison it is to meet, and reported once."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from _pytest.runner import runtestprotocol

from harness.pytest.poison.process.difference import differences
from harness.pytest.poison.process.lost_device import lost_cuda
from harness.pytest.poison.process.observation import Asserted
from harness.pytest.poison.process.watch import Watch

SECTION = "poison"


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of a test: its reports, and what it asserted on."""

    pattern: str | None
    reports: list[pytest.TestReport]
    asserted: list[Asserted]

    @property
    def failed(self) -> pytest.TestReport | None:
        """The report that failed, if one did."""
        return next((report for report in self.reports if report.failed), None)

    @property
    def is_whole(self) -> bool:
        """Whether the test ran to its end and passed."""
        return all(report.passed and not hasattr(report, "wasxfail") for report in self.reports)


def run_item(watch: Watch, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
    """Run `item` under each pattern, and give the reports of the pass that says most: the first failed one."""
    rewind = random_state()

    def run(pattern: str | None) -> Pass:
        rewind()
        with watch.observing(getattr(item, "obj", None), pattern) as observation:
            # The only call into pytest's inside: it sets a test up anew each time, which no public function does.
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            return Pass(pattern, reports, observation.asserted)

    first, *others = watch.settings.patterns
    done = run(first)
    if done.failed is not None or not done.is_whole:
        return _explained(watch, item, done, run)
    for pattern in others:
        other = run(pattern)
        if other.failed is not None:
            return _explained(watch, item, other, run)
        if watch.settings.is_diff and other.is_whole:
            said = differences(done.asserted, other.asserted)
            # A test that differs from itself without any change of the poison tells nothing. Sums of atomics in any
            # order come out the same now and then, so both are asked.
            if said and not (
                differences(done.asserted, run(first).asserted) or differences(other.asserted, run(pattern).asserted)
            ):
                return _failed_by_difference(done, other, said)
    return done.reports


def _explained(
    watch: Watch, item: pytest.Item, done: Pass, run: Callable[[str | None], Pass]
) -> list[pytest.TestReport]:
    """Say of a failure whether the poison is behind it; findings explain themselves."""
    report = done.failed
    if report is None or getattr(report, "poison_found", False):
        return done.reports
    reason = lost_cuda()
    if reason:
        # In this process the same test fails from now on without poison too, which would tell nothing.
        since = f"since {watch.lost_in}" if watch.lost_in else f"since this test under pattern {done.pattern}"
        report.sections.append((SECTION, f"CUDA is of no use to this process {since}: {reason}"))
        _counts(report)["lost"] = 1
        watch.lost_in = watch.lost_in or item.nodeid
        return done.reports
    bare = run(None).failed
    said = "passes without poison" if bare is None else "fails without poison too: no finding of the poison"
    report.sections.append((SECTION, f"this test {said} (pattern {done.pattern})"))
    _counts(report)["failed_anyway" if bare is not None else "found"] = 1
    return done.reports


def _failed_by_difference(done: Pass, other: Pass, said: list[str]) -> list[pytest.TestReport]:
    under = f"({done.pattern}, then {other.pattern})"
    lines = [f"what this test asserts on depends on memory that nobody wrote {under}:", *(f"  {one}" for one in said)]
    for report in done.reports:
        if report.when == "call":
            report.outcome = "failed"
            report.longrepr = "\n".join(lines)
            _counts(report)["found"] = 1
    return done.reports


def _counts(report: pytest.TestReport) -> dict[str, int]:
    counts: dict[str, int] = report.__dict__.setdefault("poison", {})
    return counts


def random_state() -> Callable[[], None]:
    """A function that sets all random generators back to what they are now, so that runs of a test draw the same."""
    python, cpu = random.getstate(), torch.get_rng_state()
    numpy: Any = sys.modules.get("numpy.random")  # where nobody has loaded it, nobody draws from it
    array = numpy.get_state() if numpy is not None else None
    cuda = _cuda_states()

    def rewind() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if array is not None:
            numpy.set_state(array)
        with contextlib.suppress(RuntimeError):  # of CUDA that is lost: a test that uses it fails by itself
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
            elif _has_cuda():
                # The first run was the first to use CUDA: its generators started at the beginning of their seeds.
                for generator in torch.cuda.default_generators:
                    generator.manual_seed(generator.initial_seed())

    return rewind


def _cuda_states() -> list[torch.Tensor] | None:
    try:
        return torch.cuda.get_rng_state_all() if _has_cuda() else None
    except RuntimeError:
        return None


def _has_cuda() -> bool:
    return bool(torch.cuda.is_initialized())  # type: ignore[no-untyped-call]
