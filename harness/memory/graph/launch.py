"""The border between host code and device code: a kernel call is one launch, and a graph records launches.

A capture sees launches and ATen ops, never the Python between them. That is why a plan made by host code before the
capture is not in the graph (vllm-project/vllm#42444) and a tensor rebound after it is not seen (#35175).
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Protocol

Watcher = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None]
"""What is shown each launch that ran: its function, arguments, keyword arguments and result."""


class Recorder(Protocol):
    """What a capture in progress offers to a kernel call."""

    def launch(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...


ACTIVE: ContextVar[Recorder | None] = ContextVar("harness_graph_recorder", default=None)


WATCHER: ContextVar[Watcher | None] = ContextVar("harness_launch_watcher", default=None)


def run(function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Run one launch, now or in a replay, and show it to the watcher, if there is one."""
    result = function(*args, **kwargs)
    watcher = WATCHER.get()
    if watcher is not None:
        watcher(function, args, kwargs, result)
    return result


class Observer(Protocol):
    """What looks at each launch that is made, also into a capture, and at none that a replay repeats.

    What it launches itself becomes part of the graph.
    """

    def before(self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any: ...

    def after(self, noted: Any, result: Any) -> None:
        """`noted` is what `before` returned."""


OBSERVER: ContextVar[Observer | None] = ContextVar("harness_launch_observer", default=None)


def launch(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Call `function` as one kernel launch: recorded whole when a CPU capture is in progress, plainly run otherwise."""
    recorder, observer = ACTIVE.get(), OBSERVER.get()
    noted = None if observer is None else observer.before(function, args, kwargs)
    result = run(function, args, kwargs) if recorder is None else recorder.launch(function, args, kwargs)
    if observer is not None:
        observer.after(noted, result)
    return result
