"""The poison of one pytest process: filled allocations, the sweep before a test, and the running
observation.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any

import numpy
import torch

from torch_poison.allocations import DispatcherPoison
from torch_poison.errors import PoisonError
from torch_poison.marks import CallSite, CallSites, describe
from torch_poison.patterns import Poison
from torch_poison.sites import WORKSPACE
from torch_poison.suite.assertions import WatchComparisons
from torch_poison.suite.observation import Observation, looking
from torch_poison.suite.settings import Settings, TestFiles


def _folder(module: Any) -> str:
    return str(Path(module.__file__).parent)


class Watch:
    """Fills memory from its creation on. `observation` is the observation of the running test."""

    def __init__(self, settings: Settings, root: Path) -> None:
        import _pytest
        import pluggy

        import torch_poison

        self.settings = settings
        self.test_files = TestFiles(root)
        passed_over = [_folder(module) for module in (torch, numpy, torch_poison)]
        pytest_itself = [_folder(module) for module in (_pytest, pluggy)]
        self.poison = DispatcherPoison(CallSites(self.test_files, passed_over, pytest_itself))
        self.poison.wanted = lambda site: (
            site.owner in settings.sites and not settings.allows(describe(site.line))
        )
        self.poison.on_fill = self._on_fill
        self.poison.install()
        self.observation: Observation | None = None
        self.not_swept = ""
        self.lost_in = ""
        """The test that left CUDA unusable for the rest of this process."""

    def watches(self, pattern: str | None) -> bool:
        """Whether the comparisons of a run under `pattern` are checked or kept."""
        return pattern == "nan" or (pattern is not None and self.settings.is_diff)

    @contextlib.contextmanager
    def observing(
        self, test: Any, pattern: str | None, is_watched: bool = False
    ) -> Iterator[Observation]:
        """Poison this block, which runs a test and its fixtures, with `pattern`.

        None runs it without any wrapper.
        """
        observation = Observation(self.poison, code_of(test), self.settings.is_diff)
        observation.filled_before = self.poison.filled
        self.observation = observation
        try:
            if pattern is None:
                self.poison.remove()
                yield observation
                return
            watching = WatchComparisons(observation) if is_watched else contextlib.nullcontext()
            with self.poison.filling(pattern):
                self._sweep(pattern)
                with watching:
                    yield observation
        finally:
            # This run was without wrappers; the next one needs them again.
            if pattern is None:
                self.poison.install()
            self.observation = None
            # A kept frame keeps its locals, and with them a test's device memory, alive until the
            # next test.
            observation.frame = None
            observation.frames_done.clear()

    def _on_fill(self, site: CallSite, frame: FrameType | None) -> None:
        if self.observation is not None:
            self.observation.filled(site, frame)

    def _sweep(self, pattern: str) -> None:
        """Fill free CUDA memory, if the program has initialized CUDA."""
        if "free" not in self.settings.sites or self.not_swept:
            return
        if not torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            return
        try:
            from torch_poison.cuda_sweep import CudaSweep, fill_word

            word = fill_word(Poison(pattern, frozenset({WORKSPACE})), WORKSPACE)
            for index in range(torch.cuda.device_count()):
                # On a device that the tests do not use, a sweep would create a context, which takes
                # memory.
                if torch.cuda.memory_reserved(index):
                    with looking(self.poison):  # A suite may have set a default device.
                        CudaSweep.of(torch.device("cuda", index))(word)
        except (PoisonError, ImportError, RuntimeError) as error:
            self.not_swept = (str(error) or type(error).__name__).splitlines()[0]


def code_of(test: Any) -> CodeType | None:
    """The code of a test's own function, without its decorators."""
    if test is None:
        return None
    # hypothesis hands pytest a function of its own, which calls the test for each example.
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    with contextlib.suppress(ValueError):
        inner = inspect.unwrap(inner)
    return getattr(getattr(inner, "__func__", inner), "__code__", None)
