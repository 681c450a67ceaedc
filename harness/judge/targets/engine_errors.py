"""Errors that the reference engine raises: it is under test, as its kernels are."""

from __future__ import annotations

import contextlib
import traceback
from collections.abc import Iterator
from pathlib import Path

from torch_poison.errors import PoisonError

from harness.core.cuda_failures import is_device_failure, is_out_of_memory
from harness.core.errors import HarnessError, KernelError, SystemUnderTestError, line_of, named
from harness.engine import batch
from harness.judge.probes import recorder

ENGINE = Path(batch.__file__).parent
PROBES = Path(recorder.__file__).parent


@contextlib.contextmanager
def errors_of_the_engine() -> Iterator[None]:
    """Raise KernelError for an error that the engine raises: it is under test as its kernels are.

    A refusal of the request, a full memory, and an error of a probe that watches the engine stay
    what they are.
    """
    try:
        yield
    except Exception as error:
        is_told = isinstance(error, HarnessError | PoisonError | SystemUnderTestError)
        if is_told or is_out_of_memory(error):
            raise
        stack = traceback.extract_tb(error.__traceback__)
        # By what lies deepest: a probe runs within the engine, and a twin runs the engine's own
        # code within a probe. The same exception from a probe itself, or a reference, is ours.
        frames = [frame for frame in stack if _is_in(frame, ENGINE) or _is_in(frame, PROBES)]
        is_raised = bool(frames) and _is_in(frames[-1], ENGINE)
        # A missing attribute of an engine object is the engine's error, wherever it is read.
        is_missing = isinstance(error, AttributeError) and type(error.obj).__module__.startswith(
            "harness.engine."
        )
        if is_device_failure(error) or not (is_raised or is_missing):
            raise
        name = type(error).__name__
        raise KernelError(
            f"the engine raised {named(error)}", error=name, at=line_of((frames or stack)[-1])
        ) from error


def _is_in(frame: traceback.FrameSummary, folder: Path) -> bool:
    return Path(frame.filename).is_relative_to(folder)
