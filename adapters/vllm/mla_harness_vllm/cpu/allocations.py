"""Poison for what torch allocates in a vLLM worker on a CPU.

The caching allocator of a GPU keeps free blocks, which a sweep fills. A CPU has none: memory comes
from `malloc` with whatever it held. So each allocation is filled as it is made, also those of C++
code that asks torch for memory. Results of torch's own ops are not: the op writes them.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterable
from typing import Any

from torch_poison.allocations import DispatcherPoison
from torch_poison.marks import CallSites

from mla_harness_vllm.serve.writes import FILLED

UNTIL_THE_END = contextlib.ExitStack()
"""Never left: sampling and the making of outputs come after a runner's `execute_model`."""


def install(runners: Iterable[Any], pattern: str) -> DispatcherPoison:
    """Fill all that torch allocates from the first step of a runner on, until the process ends.

    Returns what fills it.
    """
    dispatcher = DispatcherPoison(CallSites(lambda path: False, passed_over=()))
    dispatcher.install()
    for runner in runners:
        runner.execute_model = _filling(runner.execute_model, dispatcher, pattern)
    return dispatcher


def _filling(
    original: Callable[..., Any], dispatcher: DispatcherPoison, pattern: str
) -> Callable[..., Any]:
    @functools.wraps(original)
    def execute_model(*args: Any, **kwargs: Any) -> Any:
        if dispatcher.pattern is None:
            UNTIL_THE_END.enter_context(dispatcher.filling(pattern))
        FILLED.allocations = dispatcher.filled
        return original(*args, **kwargs)

    return execute_model
