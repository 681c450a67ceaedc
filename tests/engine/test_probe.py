"""A probe sees what an engine does, in order, and changes nothing that it computes."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from harness.core.engine_params import EngineParams
from harness.engine.engine import Engine
from harness.engine.model.transformer import CausalLM
from harness.engine.probe import Probe
from harness.engine.schedule.config import model_config
from harness.memory.graph.launch import launch
from harness.memory.poison.patterns import Poison
from tests.engine.conftest import serve_all

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

    def on_model(self, model: CausalLM) -> None:
        self.events.append("model")

    def on_step(self, ordered: list[Any], *, is_replay: bool) -> contextlib.AbstractContextManager[None]:
        return self._around(f"{'graph' if is_replay else 'eager'} step of {len(ordered)}")

    def on_forward(self, num_tokens: int) -> contextlib.AbstractContextManager[None]:
        return self._around(f"forward of {num_tokens}")

    def on_replay(self) -> contextlib.AbstractContextManager[None]:
        return self._around("replay")

    def on_answers(self, logits: torch.Tensor) -> None:
        self.events.append(f"answers of {len(logits)}")

    def after_launch(self, noted: Any, result: Any) -> None:
        self.num_launches += 1

    def on_repeat(self, function: Any, args: Any, result: Any) -> None:
        self.num_repeats += 1


def served(probe: Probe | None) -> Engine:
    model = CausalLM(model_config(PARAMS)).reset_parameters(0).eval().requires_grad_(False)
    made = Engine(model, PARAMS, Poison("nan", frozenset()), 150, probe=probe)
    made.add_request([1, 2, 3], 2)
    serve_all(made)
    return made


def test_a_probe_is_told_of_every_step_forward_and_replay_in_order() -> None:
    log = Log()
    served(log)
    forward = ["forward of 2", "end of forward of 2"]
    twins = log.events[log.events.index("end of replay", log.events.index("graph step of 1")) + 1 : -4]
    dummy = ["replay", "end of replay"]
    assert log.events == [
        "model", *forward, *forward,
        "eager step of 1", "forward of 3", "end of forward of 3", "end of eager step of 1", "answers of 1", *dummy,
        "graph step of 1", "replay", "end of replay", *twins, "end of graph step of 1", "answers of 1", *dummy,
    ]  # fmt: skip
    assert twins[-2:] == forward and not {"replay", "answers of 1"} & set(twins)
    assert log.num_launches and log.num_repeats


def test_launches_are_shown_to_the_probe_of_the_engine_that_makes_them() -> None:
    log = Log()
    served(log)
    seen = log.num_launches
    launch(torch.add, torch.ones(1), 1)
    served(None)
    assert log.num_launches == seen


def test_a_probe_leaves_every_bit_as_it_is() -> None:
    plain, watched = (served(probe).observations.logits[0] for probe in (None, Log()))
    assert all(torch.equal(ours, theirs) for ours, theirs in zip(plain, watched, strict=True))
