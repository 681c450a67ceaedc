"""A probe sees what an engine does, in order, and changes nothing that it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.engine.batch import Batch
from harness.engine.engine import ReferenceEngine
from harness.engine.model.transformer import CausalLM
from harness.engine.paged_model import Forwarded
from harness.engine.probe import Probe, Sampled
from harness.engine.schedule.config import model_config
from harness.engine.schedule.sequence import Step
from harness.judge.probes.group import ProbeGroup
from harness.judge.probes.notes import Notes
from harness.memory.graph.launch import launches_shown_to

PARAMS = EngineParams(graph="full", capture_sizes=(2,), max_num_seqs=2, dummy_steps=True)


@dataclass
class Log(Probe):
    """Writes down what happens."""

    events: list[str] = field(default_factory=list)
    num_launches: int = 0
    num_repeats: int = 0

    @contextlib.contextmanager
    def _around(self, what: str) -> Iterator[None]:
        self.events.append(what)
        yield
        self.events.append(f"end of {what}")

    def on_start(self, *parts: Any) -> None:
        self.events.append("start")

    def on_capture(self, inputs: Batch, graph: Any) -> None:
        self.events.append(f"capture of {inputs.num_decodes}")

    def before_step(self, step: Step) -> None:
        self.events.append(f"step of {len(step.scheduled)}")

    def on_step(self, ordered: list[Any], batch: Batch) -> contextlib.AbstractContextManager[None]:
        return self._around(f"run of {len(batch.hidden)}")

    def on_forward(self, num_tokens: int) -> contextlib.AbstractContextManager[None]:
        return self._around(f"forward of {num_tokens}")

    def on_replay(self, inputs: Batch) -> contextlib.AbstractContextManager[None]:
        return self._around(f"replay of {inputs.num_decodes}")

    def on_forwarded(self, forwarded: Forwarded) -> None:
        self.events.append(f"result of {len(forwarded.logits)}")

    def on_logits(self, logits: torch.Tensor) -> None:
        self.events.append(f"logits of {len(logits)}")

    def on_sampled(self, sampled: list[Sampled]) -> None:
        self.events.append(f"tokens {[len(item.tokens) for item in sampled]}")

    def on_dummy_step(self) -> contextlib.AbstractContextManager[None]:
        return self._around("dummy step")

    def after_launch(self, noted: Any, result: Any) -> None:
        self.num_launches += 1

    def on_repeat(self, function: Any, args: Any, result: Any) -> None:
        self.num_repeats += 1


def served(probe: Probe | None) -> tuple[ReferenceEngine, list[torch.Tensor]]:
    """An engine after one request, and its logits."""
    model = CausalLM(model_config(PARAMS)).reset_parameters(0).eval().requires_grad_(False)
    with launches_shown_to(probe):
        made = ReferenceEngine(model, PARAMS, Poison("nan", frozenset()), 150, probe)
        made.add_request([1, 2, 3], 2)
        logits = []
        while made.scheduler.has_work:
            logits += [item.logits for item in made.step()]
    return made, logits


def test_a_probe_sees_every_event_in_its_order() -> None:
    log = Log()
    served(log)
    forward = ["forward of 2", "end of forward of 2"]
    dummy = ["dummy step", "replay of 2", "end of replay of 2", "end of dummy step"]
    assert log.events == [
        "start",
        *forward,
        *forward,
        "capture of 2",
        "step of 1",
        "run of 3",
        "forward of 3",
        "end of forward of 3",
        "result of 3",
        "end of run of 3",
        "logits of 1",
        "tokens [1]",
        *dummy,
        "step of 1",
        "run of 1",
        "replay of 2",
        "end of replay of 2",
        "result of 2",
        "end of run of 1",
        "logits of 1",
        "tokens [1]",
        *dummy,
    ]
    assert log.num_launches and log.num_repeats


def test_a_group_calls_each_probe_and_leaves_the_last_first() -> None:
    first, second = Log(), Log()
    second.events = first.events
    served(ProbeGroup(first, second))
    alone = Log()
    served(alone)
    assert first.events == [event for event in alone.events for _ in range(2)]


def test_a_probe_leaves_every_bit_as_it_is() -> None:
    notes = Notes(PARAMS, Poison("nan", frozenset()))
    plain, *watched = (served(probe)[1] for probe in (None, Log(), notes))
    for others in (*watched, notes.answers.logits[0]):
        assert all(
            torch.equal(ours.flatten(), theirs.flatten())
            for ours, theirs in zip(plain, others, strict=True)
        )
    assert notes.twins.replays and notes.twins.bindings
