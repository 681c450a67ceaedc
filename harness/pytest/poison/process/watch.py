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

from harness.core.errors import HarnessError
from harness.memory.poison.allocations import SITE, DispatcherPoison
from harness.memory.poison.marks import CallSite, CallSites, describe
from harness.memory.poison.patterns import Poison
from harness.pytest.poison.process.assertions import WatchComparisons
from harness.pytest.poison.process.observation import Observation, looking
from harness.pytest.poison.settings import Settings, TestFiles
from mla_harness_loader import own_names


def _folder(module: Any) -> str:
    return str(Path(module.__file__).parent)


class Watch:
    """Fills memory from its creation on. `observation` is the observation of the running test."""

    def __init__(self, settings: Settings, root: Path) -> None:
        import _pytest
        import pluggy

        import harness.memory.poison
        import harness.pytest.poison

        self.settings = settings
        self.test_files = TestFiles(root)
        passed_over = [
            _folder(module)
            for module in (torch, numpy, harness.memory.poison, harness.pytest.poison)
        ]
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
            if pattern is None:
                self.poison.install()
            self.observation = None
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
            with own_names():  # The project under test may have a `harness` of its own.
                from harness.memory.poison.cuda_sweep import CudaSweep, fill_word

            word = fill_word(Poison(pattern, frozenset({SITE})), SITE)
            for index in range(torch.cuda.device_count()):
                if torch.cuda.memory_reserved(index):
                    with looking(self.poison):  # A suite may have set a default device.
                        CudaSweep.of(torch.device("cuda", index))(word)
        except (HarnessError, ImportError, RuntimeError) as error:
            self.not_swept = (str(error) or type(error).__name__).splitlines()[0]


def code_of(test: Any) -> CodeType | None:
    """The code of a test's own function, without its decorators."""
    if test is None:
        return None
    inner = getattr(getattr(test, "hypothesis", None), "inner_test", test)
    with contextlib.suppress(ValueError):
        inner = inspect.unwrap(inner)
    return getattr(getattr(inner, "__func__", inner), "__code__", None)
