"""Judge the local variables of a test at its end, if the test examined them as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from types import FrameType, TracebackType

import torch

from harness.memory.graph.storage import tensors_of
from harness.memory.poison.marks import find
from harness.pytest.poison.process.examined_names import examined_whole
from harness.pytest.poison.process.observation import Observation, PoisonFound, described, looking, readable


def judge(observation: Observation) -> list[PoisonFound]:
    """The marks in locals that the test examined as a whole.

    A buffer that the test allocated counts only if a part of it was written. An entirely unwritten buffer is an input
    that does not matter; if it matters, the comparing functions have seen it.
    """
    frames = [*observation.frames_done, *([observation.frame] if observation.frame is not None else [])]
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


def in_traceback(observation: Observation, traceback: TracebackType | None) -> list[PoisonFound]:
    """The marks in locals of the suite's frames of a failure, which the failed assertion may have read."""
    found: list[PoisonFound] = []
    sites = observation.poison.call_sites
    with looking(observation.poison):
        while traceback is not None:
            frame = traceback.tb_frame
            if sites.owner_of(frame.f_code.co_filename) == "tests":
                found += [one for _, one in _held(frame, observation, traceback.tb_lineno)]
            traceback = traceback.tb_next
    return found


def _held(frame: FrameType, observation: Observation, line: int | None) -> Iterator[tuple[str, PoisonFound]]:
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
