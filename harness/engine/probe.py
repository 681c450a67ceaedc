"""The probe: one object, handed to `Engine`, with a method for each kind of event."""

from __future__ import annotations

import contextlib
from contextlib import AbstractContextManager

from torch import Tensor

from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.scheduler import ScheduledSequence
from harness.memory.graph.launch import LaunchProbe


class Probe(LaunchProbe):
    """Watches nothing by itself. Subclasses override methods; they must not change what the engine computes."""

    def on_model(self, model: CausalLM) -> None:
        """An engine is made. Its forwards call the modules of `model`."""

    def on_step(self, ordered: list[ScheduledSequence], *, is_replay: bool) -> AbstractContextManager[None]:
        """Around a step of the requests `ordered`, in the order of the batch; `is_replay` if it replays a graph.

        Warm-ups, captures and dummy steps do not count. The eager twin of a replay belongs to its step.
        """
        return contextlib.nullcontext()

    def on_forward(self, num_tokens: int) -> AbstractContextManager[None]:
        """Around each forward that Python runs: eager, warm-up or captured."""
        return contextlib.nullcontext()

    def on_replay(self) -> AbstractContextManager[None]:
        """Around each replay of a decode graph and its planning, dummy steps included."""
        return contextlib.nullcontext()

    def on_answers(self, logits: Tensor) -> None:
        """After a step: the logits [n, vocab] of its tokens, in the order of the batch."""
