from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.engine_params import EngineParams
from harness.engine.engine import ReferenceEngine
from harness.engine.model.transformer import CausalLM
from harness.engine.schedule.config import model_config
from harness.engine.schedule.scheduler import Scheduler
from harness.engine.schedule.sequence import Step
from harness.judge.probes.notes import Notes


def notes_of(engine: ReferenceEngine) -> Notes:
    """What the probe of an engine noted."""
    assert isinstance(engine.probe, Notes)
    return engine.probe


def serve_all(engine: ReferenceEngine) -> None:
    """Step until every request is finished."""
    while engine.scheduler.has_work:
        engine.step()


@pytest.fixture(autouse=True)
def one_thread() -> Iterator[None]:
    """Run on one core without gradients, as a worker does."""
    torch.set_num_threads(1)
    with torch.no_grad():
        yield


@pytest.fixture(scope="session")
def make_engine() -> Callable[[EngineParams], ReferenceEngine]:
    """Make an engine of a small model, for requests of up to 150 tokens, in friendly memory."""

    def make(params: EngineParams) -> ReferenceEngine:
        model = CausalLM(model_config(params)).reset_parameters(0).eval().requires_grad_(False)
        return ReferenceEngine(
            model,
            params,
            Poison("nan", frozenset()),
            150,
            Notes(params, Poison("nan", frozenset())),
        )

    return make


Advance = Callable[[Scheduler, Step], None]


@pytest.fixture(scope="session")
def advance() -> Advance:
    """What an engine does with a scheduler after the model ran: each request whose tokens are done
    gets a token.
    """

    def take(scheduler: Scheduler, step: Step) -> None:
        for item in step.scheduled:
            item.sequence.num_computed_tokens += item.num_new_tokens
            if item.sequence.num_uncomputed_tokens == 0:
                item.sequence.tokens.append(0)
            if item.sequence.is_finished:
                scheduler.finish(item.sequence)

    return take
