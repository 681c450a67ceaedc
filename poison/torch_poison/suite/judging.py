"""Run each test under poison, and add findings about uninitialised memory to its report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from types import FrameType, TracebackType

import pytest
import torch

from torch_poison.marks import describe, find, short
from torch_poison.storages import tensors_of
from torch_poison.suite.examined_names import examined_whole
from torch_poison.suite.observation import (
    Observation,
    PoisonFound,
    described,
    looking,
    readable,
)
from torch_poison.suite.passes import SECTION, lost_cuda, run_item
from torch_poison.suite.settings import Settings
from torch_poison.suite.watch import Watch

MAX_FINDINGS = 5
MAX_ORIGINS = 3
OWNERS = {"code": "allocated by the code under test:", "tests": "allocated by the test:"}


class SuiteJudge:
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
        report.__dict__["poison"] = sums = {"tests": 1, **asdict(counts)}
        if self._watch.not_swept:
            report.__dict__["poison_note"] = self._watch.not_swept
        reason = lost_cuda()
        if reason:
            # The device cannot be read any more.
            if report.passed:
                report.outcome = "failed"
                report.longrepr = (
                    f"this test left CUDA unusable, and ended before that showed: {reason}"
                )
        elif report.passed and not hasattr(report, "wasxfail"):
            found = [*seen.found, *(found_at_end(seen) if not seen.found else [])]
            if found:
                report.outcome = "failed"
                lines = ["this test passes on uninitialised memory:", *sentences(found)]
                report.longrepr = "\n".join(lines)
                report.__dict__["poison_found"] = True
                sums["found"] = 1
        elif report.failed and call.excinfo is not None:
            # The assertion failed for a reason of its own; poison is told beside it only if its
            # values held some.
            held = seen.found or found_in_traceback(seen, call.excinfo.tb)
            if held:
                report.sections.append((SECTION, "\n".join(sentences(held))))
                report.__dict__["poison_held"] = True


def sentences(found: Sequence[PoisonFound]) -> list[str]:
    """Lines for all different findings, each with the stack of its allocation."""
    unique = list(dict.fromkeys(found))
    lines: list[str] = []
    for one in unique[:MAX_FINDINGS]:
        lines.append(
            f"{one.what} at {short(one.where)} holds uninitialised memory, or values computed from"
            f" it: {one.count} of {one.total} elements, first at {list(one.index)}, bits {one.bits}"
        )
        lines += _origin(one)
    if len(unique) > MAX_FINDINGS:
        lines.append(f"and {len(unique) - MAX_FINDINGS} more findings")
    return lines


def _origin(one: PoisonFound) -> list[str]:
    if one.owner is None:
        return [
            "  it was free CUDA memory before the test, and no allocation through torch's"
            " dispatcher"
        ]
    if not one.origins:
        return ["  its line is not known: it was allocated before this test"]
    lines = [f"  {OWNERS[one.owner]}"]
    if len(one.origins) > 1:
        lines.append(f"  one of {len(one.origins)} lines, as a 6-bit mark does not tell which:")
    for stack in one.origins[:MAX_ORIGINS]:
        first, *rest = map(describe, stack)
        lines += [f"    {short(first)}", *(f"      from {short(line)}" for line in rest)]
    return lines


def found_at_end(observation: Observation) -> list[PoisonFound]:
    """The marks in locals that the test examined as a whole.

    A buffer that the test allocated counts only if a part of it was written. An entirely unwritten
    buffer is an input that does not matter; if it matters, the comparing functions have seen it.
    """
    frames = [
        *observation.frames_done,
        *([observation.frame] if observation.frame is not None else []),
    ]
    found: list[PoisonFound] = []
    if observation.poison.pattern != "nan":
        return found
    with looking(observation.poison):
        for frame in frames:
            held = list(_held(frame, observation, None))
            if not held:
                continue
            names = examined_whole(frame, lambda name: hasattr(torch.Tensor, name))
            for name, one in held:
                is_input = one.owner == "tests" and one.count == one.total
                if name in names and not is_input and one.owner is not None:
                    found.append(one)
    return found


def found_in_traceback(
    observation: Observation, traceback: TracebackType | None
) -> list[PoisonFound]:
    """The marks in locals of the suite's frames of a failure, which the failed assertion may have
    read.
    """
    found: list[PoisonFound] = []
    sites = observation.poison.call_sites
    with looking(observation.poison):
        while traceback is not None:
            frame = traceback.tb_frame
            if sites.owner_of(frame.f_code.co_filename) == "tests":
                found += [one for _, one in _held(frame, observation, traceback.tb_lineno)]
            traceback = traceback.tb_next
    return found


def _held(
    frame: FrameType, observation: Observation, line: int | None
) -> Iterator[tuple[str, PoisonFound]]:
    place = f"{frame.f_code.co_filename}:{line or frame.f_code.co_firstlineno}"
    for name, value in list(frame.f_locals.items()):
        for tensor in _tensors(value):
            values = readable(tensor)
            for mark in find(values) if values is not None else ():
                owner, origins = observation.origins_of(mark)
                assert values is not None
                what = f"local {name!r} of {frame.f_code.co_qualname}"
                yield name, described(mark, values, what, place, owner, origins)


def _tensors(value: object) -> Iterable[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return (value,)
    return tensors_of(value) if isinstance(value, list | tuple | dict) else ()
