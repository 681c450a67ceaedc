"""The border between host code and device code: a kernel call is one launch, and a graph records launches.

A capture sees launches and ATen ops, never the Python between them. That is why a plan made by host code before the
capture is not in the graph (PR 42444) and a tensor rebound after it is not seen (#35175).
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any, Protocol

Function = Callable[..., Any]


class Recorder(Protocol):
    """What a capture in progress offers to a kernel call."""

    def launch(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


class LaunchProbe(Protocol):
    """Sees launches. What it launches itself, other than through `launch_unseen`, it sees as well."""

    def before_launch(self, function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A launch is about to run, or to be captured. Returns what `after_launch` is given as `noted`."""

    def after_launch(self, noted: Any, result: Any) -> None:
        """The launch ran, or was captured. What is launched here during a capture becomes part of the graph."""

    def on_repeat(self, function: Function, args: tuple[Any, ...], result: Any) -> None:
        """A replay on a CPU repeated one launch or ATen op. Replays on CUDA run no Python and show nothing."""


ACTIVE: ContextVar[Recorder | None] = ContextVar("harness_graph_recorder", default=None)
_PROBE: ContextVar[LaunchProbe | None] = ContextVar("harness_launch_probe", default=None)


@contextlib.contextmanager
def launches_shown_to(probe: LaunchProbe | None) -> Iterator[None]:
    """Show every launch within the block to `probe` alone; to no probe for None."""
    token = _PROBE.set(probe)
    try:
        yield
    finally:
        _PROBE.reset(token)


def launch(function: Function, *args: Any, **kwargs: Any) -> Any:
    """Call `function` as one kernel launch: recorded whole when a CPU capture is in progress, plainly run otherwise."""
    recorder, probe = ACTIVE.get(), _PROBE.get()
    noted = None if probe is None else probe.before_launch(function, args, kwargs)
    result = function(*args, **kwargs) if recorder is None else recorder.launch(function, args, kwargs)
    if probe is not None:
        probe.after_launch(noted, result)
    return result


def launch_unseen(function: Function, *args: Any, **kwargs: Any) -> Any:
    """A launch that a probe makes for itself: a capture records it, and no probe sees it."""
    with launches_shown_to(None):
        return launch(function, *args, **kwargs)


def repeat(function: Function, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one recorded launch or op again, as part of a replay."""
    result = function(*args, **kwargs)
    probe = _PROBE.get()
    if probe is not None:
        probe.on_repeat(function, args, result)
    return result
