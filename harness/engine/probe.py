"""The hooks of the engine: one object, handed to `Engine`, with a method for each event of a
serving run.

Letters: T tokens of a batch, B requests of a decode with S query tokens each, n rows of logits.
"""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from torch import Tensor

from harness.engine.batch import Batch, Padding
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.schedule.block_pool import BlockPool
from harness.engine.schedule.sequence import ScheduledSequence, Sequence, Step
from harness.engine.speculation import GraphDrafter
from harness.memory.graph.interface import Graph
from harness.memory.graph.launch import LaunchProbe


@dataclass(frozen=True, slots=True)
class Sampled:
    """What a step gave a request: its `logits` [n, vocab], and the `tokens` that the first rows
    gave.

    A part of a prompt gives no token. Rows behind the tokens belong to rejected drafts. `drafted`
    [n, vocab] are the logits of a module that drafts, and `drafts` the ones that the step verified.
    """

    sequence: Sequence
    logits: Tensor
    tokens: list[int]
    drafted: Tensor | None = None
    drafts: list[int] = field(default_factory=list)


class Probe(LaunchProbe):
    """Watches nothing by itself.

    Subclasses override methods; they must not change what the engine computes.
    """

    def on_start(
        self, model: PagedModel, memory: PagedMemory, pool: BlockPool, padding: Padding
    ) -> None:
        """An engine has its model and memory. No warm-up and no capture has run."""

    def on_capture(self, inputs: Batch, graph: Graph) -> None:
        """`graph` was captured on the static `inputs` of B requests, which hold the plan that it
        reads.
        """

    def before_step(self, step: Step) -> None:
        """Blocks have their new owners and are zeroed. Nothing else of the step has run."""

    def on_step(
        self, ordered: list[ScheduledSequence], batch: Batch
    ) -> AbstractContextManager[None]:
        """Around the run of a `batch` of T tokens, eager or replayed.

        `ordered` are its requests, in order.

        Warm-ups, captures and dummy steps are no steps.
        """
        return contextlib.nullcontext()

    def on_forward(self, num_tokens: int) -> AbstractContextManager[None]:
        """Around each forward that Python runs: eager, warm-up or captured, dummy steps
        included.
        """
        return contextlib.nullcontext()

    def on_replay(self, inputs: Batch) -> AbstractContextManager[None]:
        """Around each replay of a decode graph and its planning, dummy steps included.

        `inputs` are the tensors of B requests that the engine filled, padding included. At the end
        of the replay they hold the plan that the engine updated.
        """
        return contextlib.nullcontext()

    def on_forwarded(self, forwarded: Forwarded) -> None:
        """A step has its result of T rows, behind which a replay has rows of padding.

        Nothing is sampled yet.
        """

    def on_drafted(self, drafter: GraphDrafter, logits: Tensor) -> None:
        """The `drafter` replayed its graph behind the target's: draft logits [T, vocab] float32,
        rows of padding included.
        """

    def on_logits(self, logits: Tensor) -> None:
        """The logits [n, vocab] float32 that the runner returns, in the order of the batch."""

    def on_sampled(self, sampled: list[Sampled]) -> None:
        """Each request of the step has its tokens. Finished requests still own their blocks."""

    def on_dummy_step(self) -> AbstractContextManager[None]:
        """Around a dummy step between two steps."""
        return contextlib.nullcontext()
