"""Launches: the border between host code and device code.

A capture records launches and ATen ops, never the Python between them. So a plan made by host code
before the capture is not in the graph (vllm-project/vllm#42444), and a tensor rebound after it is
not seen (vllm-project/vllm#35175).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Any, Protocol, TypeVar

Function = Callable[..., Any]
ValueT = TypeVar("ValueT")


class Recorder(Protocol):
    """A capture in progress."""

    def launch(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class LaunchProbe:
    """Watches nothing by itself.

    A subclass sees all launches, its own included unless it uses `launch_unseen`.
    """

    def before_launch(
        self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Before a launch runs or is captured. Returns the `noted` of `after_launch`."""

    def after_launch(self, noted: Any, result: Any) -> None:
        """After the launch ran or was captured.

        A launch made here during a capture becomes part of the graph.
        """

    def on_repeat(self, function: Function, args: tuple[Any, ...], result: Any) -> None:
        """After a replay on a CPU repeated one launch or ATen op. Replays on CUDA run no Python."""


class PartRecorder(Protocol):
    """A capture in progress that ends a segment in front of each eager part."""

    def eager(self, function: Function, args: tuple[Any, ...]) -> Any: ...


ACTIVE: ContextVar[Recorder | None] = ContextVar("harness_graph_recorder", default=None)
IN_PARTS: ContextVar[PartRecorder | None] = ContextVar("harness_part_recorder", default=None)
_PROBE: ContextVar[LaunchProbe | None] = ContextVar("harness_launch_probe", default=None)


@contextlib.contextmanager
def holding(variable: ContextVar[ValueT], value: ValueT) -> Iterator[ValueT]:
    """Give a context variable this value within the block."""
    token = variable.set(value)
    try:
        yield value
    finally:
        variable.reset(token)


def launches_shown_to(probe: LaunchProbe | None) -> AbstractContextManager[LaunchProbe | None]:
    """Show every launch within the block to `probe` alone, or to no probe."""
    return holding(_PROBE, probe)


def launch(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call `function` as one kernel launch. A CPU capture records it whole."""
    recorder = ACTIVE.get()
    probe = _PROBE.get()
    noted = None if probe is None else probe.before_launch(function, args, kwargs)
    result = (
        function(*args, **kwargs) if recorder is None else recorder.launch(function, args, kwargs)
    )
    if probe is not None:
        probe.after_launch(noted, result)
    return result


def eager_part(function: Function, *args: Any) -> Any:
    """Call `function`.

    A capture in parts does not record it: each replay calls it again, on the captured tensors.
    """
    recorder = IN_PARTS.get()
    return function(*args) if recorder is None else recorder.eager(function, args)


def launch_unseen(function: Function, *args: Any, **kwargs: Any) -> Any:
    """A launch by a probe: a capture records it, and no probe sees it."""
    with launches_shown_to(None):
        return launch(function, *args, **kwargs)


def repeat(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Repeat one recorded launch or op in a replay."""
    result = function(*args, **kwargs)
    probe = _PROBE.get()
    if probe is not None:
        probe.on_repeat(function, args, result)
    return result
