"""Several probes of one engine."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager

from torch import Tensor

from harness.engine.batch import Batch, Padding
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.probe import Probe, Sampled
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.sequence import ScheduledSequence, Step
from harness.engine.speculation import Drafter
from harness.memory.graph.interface import Graph


class ProbeGroup(Probe):
    """Calls each hook of all `probes`, in their order. What is around something is left in the reverse order.

    Launches are shown to the probes that ask for them, see `launches_shown_to`, and not to a group.
    """

    def __init__(self, *probes: Probe) -> None:
        self.probes = probes

    def on_start(self, model: PagedModel, memory: PagedMemory, pool: BlockPool, padding: Padding) -> None:
        for probe in self.probes:
            probe.on_start(model, memory, pool, padding)

    def on_capture(self, inputs: Batch, graph: Graph) -> None:
        for probe in self.probes:
            probe.on_capture(inputs, graph)

    def before_step(self, step: Step) -> None:
        for probe in self.probes:
            probe.before_step(step)

    def on_step(self, ordered: list[ScheduledSequence], batch: Batch) -> AbstractContextManager[None]:
        return within(probe.on_step(ordered, batch) for probe in self.probes)

    def on_forward(self, num_tokens: int) -> AbstractContextManager[None]:
        return within(probe.on_forward(num_tokens) for probe in self.probes)

    def on_replay(self, inputs: Batch) -> AbstractContextManager[None]:
        return within(probe.on_replay(inputs) for probe in self.probes)

    def on_forwarded(self, forwarded: Forwarded) -> None:
        for probe in self.probes:
            probe.on_forwarded(forwarded)

    def on_drafted(self, drafter: Drafter, logits: Tensor) -> None:
        """Draft logits [T, vocab] for each probe."""
        for probe in self.probes:
            probe.on_drafted(drafter, logits)

    def on_logits(self, logits: Tensor) -> None:
        """Logits [n, vocab] for each probe."""
        for probe in self.probes:
            probe.on_logits(logits)

    def on_sampled(self, sampled: list[Sampled]) -> None:
        for probe in self.probes:
            probe.on_sampled(sampled)

    def on_dummy_step(self) -> AbstractContextManager[None]:
        return within(probe.on_dummy_step() for probe in self.probes)


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
