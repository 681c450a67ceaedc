"""Run one test once under each poison, and report it once."""

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

from torch_poison.marks import plain
from torch_poison.patterns import bits_view
from torch_poison.suite.observation import Asserted, Kept
from torch_poison.suite.watch import Watch

SECTION = "poison"
_PLAIN = ("without the plug-in in one run, and fails over zeros", None)
BARE = (("without poison", "zeros"), _PLAIN, _PLAIN)
"""The runs without poison that tell whether a test is broken by itself.

The last two have no wrapper and no mode.
"""


@dataclass(frozen=True, slots=True)
class Pass:
    """One run of a test: its reports and its asserted values."""

    pattern: str
    reports: list[pytest.TestReport]
    asserted: list[Asserted]

    @property
    def failed(self) -> pytest.TestReport | None:
        return next((report for report in self.reports if report.failed), None)

    @property
    def is_whole(self) -> bool:
        """Whether the test ran to its end and passed."""
        return all(report.passed and not hasattr(report, "wasxfail") for report in self.reports)


Run = Callable[[str | None, bool], Pass]
"""Runs the test under a pattern, or without the plug-in for None, and watches its comparisons or
does not.
"""


def run_item(
    watch: Watch, item: pytest.Item, nextitem: pytest.Item | None
) -> list[pytest.TestReport]:
    """Run `item` under each pattern.

    Returns the reports of the first failed run, or of the first run.
    """
    rewind = random_state()

    def run(pattern: str | None, is_watched: bool) -> Pass:
        rewind()
        with watch.observing(getattr(item, "obj", None), pattern, is_watched) as observation:
            # A private function of pytest: no public one sets a test up again for each run.
            reports = runtestprotocol(item, nextitem=nextitem, log=False)
            return Pass(pattern or "none", reports, observation.asserted)

    first, *others = watch.settings.patterns
    done = run(first, watch.watches(first))
    if done.failed is not None or not done.is_whole:
        return _explained(watch, item, done, run)
    for pattern in others:
        other = run(pattern, watch.watches(pattern))
        if other.failed is not None:
            return _explained(watch, item, other, run)
        if watch.settings.is_diff and other.is_whole:
            found = differences(done.asserted, other.asserted)
            # A test may differ from itself under one poison. Sums of atomics differ only sometimes,
            # so both patterns are repeated.
            if found and not (
                differences(done.asserted, run(first, True).asserted)
                or differences(other.asserted, run(pattern, True).asserted)
            ):
                return _failed_by_difference(done, other, found)
    return done.reports


def _explained(watch: Watch, item: pytest.Item, done: Pass, run: Run) -> list[pytest.TestReport]:
    """Add to a failure without findings whether the test also fails without poison."""
    report = done.failed
    if report is None or getattr(report, "poison_found", False):
        return done.reports
    reason = lost_cuda()
    if reason:
        # Without poison the same test would fail in this process too.
        since = (
            f"since {watch.lost_in}"
            if watch.lost_in
            else f"since this test under pattern {done.pattern}"
        )
        report.sections.append((SECTION, f"this process cannot use CUDA {since}: {reason}"))
        _counts(report)["lost"] = 1
        watch.lost_in = watch.lost_in or item.nodeid
        return done.reports
    # What memory holds by chance fails a test too, and may still be the poison of the run before.
    # So a test is broken without poison only if it fails over zeros, as a fresh process has them,
    # and twice over memory that is not filled.
    passed = next((how for how, pattern in BARE if run(pattern, False).failed is None), None)
    if passed and watch.watches(done.pattern) and not hasattr(report, "poison_held"):
        unwatched = run(done.pattern, False)
        if unwatched.failed is None:
            _counts(unwatched.reports[-1])["unwatched"] = 1
            return unwatched.reports
    outcome = f"passes {passed}" if passed else "fails without poison too: no finding of the poison"
    report.sections.append((SECTION, f"this test {outcome} (pattern {done.pattern})"))
    _counts(report)["found" if passed else "failed_anyway"] = 1
    return done.reports


def _failed_by_difference(done: Pass, other: Pass, found: list[str]) -> list[pytest.TestReport]:
    under = f"({done.pattern}, then {other.pattern})"
    head = f"the asserted values of this test depend on uninitialised memory {under}:"
    lines = [head, *(f"  {one}" for one in found)]
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
    """A function that resets all random generators to their present state, so that all runs draw
    the same numbers.
    """
    python = random.getstate()
    cpu = torch.get_rng_state()
    numpy: Any = sys.modules.get("numpy.random")  # Without it, no test draws from it.
    array = numpy.get_state() if numpy is not None else None
    cuda = _cuda_states()

    def rewind() -> None:
        random.setstate(python)
        torch.set_rng_state(cpu)
        if array is not None:
            numpy.set_state(array)
        with contextlib.suppress(
            RuntimeError
        ):  # If CUDA is lost, a test that uses it fails by itself.
            if cuda is not None:
                torch.cuda.set_rng_state_all(cuda)
            elif _has_cuda():
                # The first run initialized CUDA, so its generators started at their seeds.
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


def lost_cuda() -> str:
    """Why this process cannot use CUDA any more, as after an illegal access; empty if it can, or
    never used it.

    Waits for all queued kernels, because a kernel's fault shows at the next wait, perhaps in the
    next test.
    """
    if not _has_cuda():
        return ""
    try:
        for index in range(torch.cuda.device_count()):
            if _is_used(index):
                torch.cuda.synchronize(index)
    except RuntimeError as error:
        return (str(error) or type(error).__name__).splitlines()[0]
    return ""


def _is_used(index: int) -> bool:
    """Whether torch holds memory of a device.

    Otherwise a call would create a context, which is slow.
    """
    try:
        return torch.cuda.memory_reserved(index) > 0
    except RuntimeError:
        return index == torch.cuda.current_device()  # The allocator keeps no statistics.


MAX_SHOWN = 5


def differences(first: list[Asserted], second: list[Asserted]) -> list[str]:
    """A sentence for each difference between the asserted values of two runs.

    An assertion is left out if its two sides have the same bits in each run: a test may compare its
    unwritten buffer with itself.
    """
    with (
        torch._C.DisableTorchFunction()
    ):  # A suite may have set a default device; these are copies on the CPU.
        found = _found(first, second)
    return found[:MAX_SHOWN] + (
        [f"and {len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else []
    )


def _found(first: list[Asserted], second: list[Asserted]) -> list[str]:
    found: list[str] = []
    for one, other in zip(first, second, strict=False):
        if one.where != other.where:
            found.append(f"the first run goes on with {one.where}, the second with {other.where}")
            break
        if _is_round_trip(one) and _is_round_trip(other):
            continue
        for number, (left, right) in enumerate(zip(one.sides, other.sides, strict=False), start=1):
            if (difference := _difference(left, right)) is not None:
                found.append(f"argument {number} of {one.where}: {difference}")
    if not found and len(first) != len(second):
        found.append(
            f"the first run makes {len(first)} assertions on tensors, the second {len(second)}"
        )
    return found


def _is_round_trip(asserted: Asserted) -> bool:
    return len(asserted.sides) == 2 and _difference(*asserted.sides) is None


def _difference(left: Kept, right: Kept) -> str | None:
    # Bits of other types cannot be compared, and a changed shape is a difference by itself.
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return (
            f"{left.dtype} {list(left.shape)} in the first run, {right.dtype} {list(right.shape)}"
            " in the second"
        )
    if left.tensor is None or right.tensor is None:
        return (
            None
            if left.digest == right.digest
            else "the bits differ (too large to keep, digests compared)"
        )
    mine = plain(left.tensor).reshape(-1)
    theirs = plain(right.tensor).reshape(-1)
    differ = (bits_view(mine.contiguous()) != bits_view(theirs.contiguous())).nonzero()
    if not len(differ):
        return None
    at = int(differ[0])
    return (
        f"{len(differ)} of {mine.numel()} elements differ, first at flat index {at}: "
        f"{float(mine[at]):.6g} in the first run, {float(theirs[at]):.6g} in the second"
    )
