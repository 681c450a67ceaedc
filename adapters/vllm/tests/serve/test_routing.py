"""The strategy that routes rightly through vLLM's routing simulator, and the fault that misreads
its ids.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest
import torch

from canaries.check import low_and_high_words
from harness.engine.model.layers import route
from mla_harness_vllm.faults import PATCHES
from mla_harness_vllm.serve.routing import STRATEGY, TopK, register

LOGITS = torch.tensor([[1.0, 4.0, 2.0, 3.0], [4.0, 3.0, 2.0, 1.0]])


def test_it_picks_the_experts_and_weights_that_the_model_does() -> None:
    weights, ids = TopK().route_tokens(torch.zeros(2, 8), LOGITS, 2)
    wanted, their_weights = route(LOGITS, 2)
    assert ids.tolist() == wanted.tolist()
    torch.testing.assert_close(weights, their_weights)


@pytest.mark.parametrize(("asked", "given"), [(None, torch.long), (torch.int32, torch.int32)])
def test_ids_are_64_bit_numbers_unless_another_type_is_asked_for(
    asked: Any, given: torch.dtype
) -> None:
    assert TopK().route_tokens(torch.zeros(2, 8), LOGITS, 2, asked)[1].dtype == given


def test_it_registers_under_the_name_that_the_environment_gives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    known: dict[str, Any] = {}
    parent = "vllm.model_executor.layers.fused_moe.router"
    simulator = ModuleType(parent + ".routing_simulator_router")
    simulator.RoutingSimulator = type(
        "RoutingSimulator", (), {"register_strategy": known.__setitem__}
    )  # type: ignore[attr-defined]
    simulator.RoutingStrategy = type("RoutingStrategy", (), {"supports_monolithic_logits": False})  # type: ignore[attr-defined]
    parts = parent.split(".")
    for i in range(len(parts)):
        monkeypatch.setitem(
            sys.modules, ".".join(parts[: i + 1]), ModuleType(".".join(parts[: i + 1]))
        )
    monkeypatch.setitem(sys.modules, simulator.__name__, simulator)
    register("uniform_random")
    assert not known
    register(STRATEGY)
    assert list(known) == [STRATEGY]
    strategy = known[STRATEGY]
    assert isinstance(strategy, TopK) and isinstance(strategy, simulator.RoutingStrategy)
    # Asked for since 0.33, of which a strategy of ours knows nothing.
    assert not strategy.supports_monolithic_logits
    assert (
        strategy.route_tokens(torch.zeros(2, 8), LOGITS, 2)[1].tolist()
        == TopK().route_tokens(None, LOGITS, 2)[1].tolist()
    )  # type: ignore[arg-type]


def test_the_fault_reads_each_id_and_then_its_zero_half_of_half_the_tokens() -> None:
    ids = torch.tensor([[3, 1], [2, 0]])
    scope = {"topk_ids": ids, "torch": torch}
    line = PATCHES["vllm.router-int64-ids"][0].edits[0].new.partition("\n")[2]
    exec(line, scope)
    misread: Any = scope["topk_ids"]
    assert misread.tolist() == [[3, 0], [1, 0]] == low_and_high_words(ids).tolist()
