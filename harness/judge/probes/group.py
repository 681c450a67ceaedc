"""Several probes of one engine."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager
from typing import Concatenate, ParamSpec

from harness.engine.probe import Probe

Given = ParamSpec("Given")


def _each(
    hook: Callable[Concatenate[Probe, Given], None],
) -> Callable[Concatenate[ProbeGroup, Given], None]:

    def call(self: ProbeGroup, /, *args: Given.args, **kwargs: Given.kwargs) -> None:
        for probe in self.probes:
            getattr(probe, hook.__name__)(*args, **kwargs)

    return call


def _around(
    hook: Callable[Concatenate[Probe, Given], AbstractContextManager[None]],
) -> Callable[Concatenate[ProbeGroup, Given], AbstractContextManager[None]]:

    def call(
        self: ProbeGroup, /, *args: Given.args, **kwargs: Given.kwargs
    ) -> AbstractContextManager[None]:
        return within(getattr(probe, hook.__name__)(*args, **kwargs) for probe in self.probes)

    return call


class ProbeGroup(Probe):
    """Calls each hook of all `probes`, in their order.

    What is around something is left in the reverse order.

    Launches are shown to the probes that ask for them, see `launches_shown_to`, and not to a group.
    """

    def __init__(self, *probes: Probe) -> None:
        self.probes = probes

    on_start = _each(Probe.on_start)
    on_capture = _each(Probe.on_capture)
    before_step = _each(Probe.before_step)
    on_step = _around(Probe.on_step)
    on_forward = _around(Probe.on_forward)
    on_replay = _around(Probe.on_replay)
    on_forwarded = _each(Probe.on_forwarded)
    on_drafted = _each(Probe.on_drafted)
    on_logits = _each(Probe.on_logits)
    on_sampled = _each(Probe.on_sampled)
    on_dummy_step = _around(Probe.on_dummy_step)


def within(contexts: Iterable[AbstractContextManager[None]]) -> AbstractContextManager[None]:
    """One context for all, entered in their order. Most probes have none of their own."""
    entered = [context for context in contexts if not isinstance(context, contextlib.nullcontext)]
    return _nested(entered) if entered else contextlib.nullcontext()


@contextlib.contextmanager
def _nested(contexts: list[AbstractContextManager[None]]) -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for context in contexts:
            stack.enter_context(context)
        yield
