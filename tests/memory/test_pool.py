"""Memory of a graph pool is valid until the next replay in the pool, and memory nobody else holds
is nobody's.
"""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import Poison, bits_view, sentinel_bits

from harness.memory.graph.launch import launch
from harness.memory.graph.recording import CpuGraphPool

NAN = Poison("nan", frozenset({"graph.pool"}))


def is_poison(tensor: torch.Tensor) -> bool:
    return bool((bits_view(tensor) == sentinel_bits(tensor.dtype, "graph.pool")).all())


def test_outputs_of_one_graph_are_lost_when_another_of_its_pool_is_replayed() -> None:
    pool, static = CpuGraphPool(NAN), torch.ones(3)
    first = pool.capture(lambda: static + 1)
    second = pool.capture(lambda: static + 2)
    first.replay()
    assert torch.equal(first.outputs, torch.full((3,), 2.0))
    second.replay()
    assert is_poison(first.outputs)
    assert torch.equal(second.outputs, torch.full((3,), 3.0))
    first.replay()
    assert torch.equal(first.outputs, torch.full((3,), 2.0))


def test_outputs_survive_a_replay_in_another_pool() -> None:
    static = torch.ones(3)
    first = CpuGraphPool(NAN).capture(lambda: static + 1)
    second = CpuGraphPool(NAN).capture(lambda: static + 2)
    first.replay()
    second.replay()
    assert torch.equal(first.outputs, torch.full((3,), 2.0))


def test_intermediates_are_swept_before_each_replay_and_outputs_of_launches_too() -> None:
    pool, static = CpuGraphPool(NAN), torch.ones(3)
    held = []

    def function() -> torch.Tensor:
        held.append(launch(lambda x: x * 5, static))
        held.append(held[0] + 1)
        return held[1].sum()

    graph = pool.capture(function)
    graph.replay()
    assert graph.outputs.item() == 18
    pool.sweep()
    assert all(is_poison(tensor) for tensor in held)


def test_what_a_graph_allocates_without_writing_holds_poison_in_a_replay() -> None:
    pool = CpuGraphPool(NAN)
    graph = pool.capture(lambda: torch.empty(4))
    graph.replay()
    assert is_poison(graph.outputs)


def test_memory_that_only_the_recording_holds_is_swept() -> None:
    pool = CpuGraphPool(NAN)
    holder = {"plan": torch.ones(3)}
    graph = pool.capture(lambda: launch(lambda plan: plan * 2, holder["plan"]))
    graph.replay()
    assert torch.equal(graph.outputs, torch.full((3,), 2.0))
    holder["plan"] = torch.full((3,), 4.0)
    graph.replay()
    assert bool(graph.outputs.isnan().all())


def test_a_python_scalar_is_taken_by_value() -> None:
    pool, static = CpuGraphPool(NAN), torch.ones(2)

    def function() -> torch.Tensor:
        out = torch.zeros(3)
        out[:2] = 5.0
        return out + static.sum() * torch.tensor(2.0)

    graph = pool.capture(function)
    graph.replay()
    graph.replay()
    assert graph.outputs.tolist() == [9.0, 9.0, 4.0]


def test_memory_that_two_recordings_hold_and_nobody_else_is_swept() -> None:
    pool = CpuGraphPool(NAN)
    holder = {"plan": torch.ones(3)}
    graphs = [pool.capture(lambda: holder["plan"][1:] * 2) for _ in range(2)]
    holder.clear()
    graphs[1].replay()
    assert bool(graphs[1].outputs.isnan().all())


@pytest.mark.parametrize("held", ["tensor", "view", "base"])
def test_memory_that_somebody_still_holds_is_left_alone(held: str) -> None:
    pool = CpuGraphPool(NAN)
    base = torch.arange(6.0)
    captured = [base[2:]]
    keep = {"tensor": captured[0], "view": captured[0][1:], "base": base}[held]
    graph = pool.capture(lambda: captured[0] * 2)
    del base
    captured.clear()
    graph.replay()
    assert torch.equal(graph.outputs, torch.tensor([4.0, 6.0, 8.0, 10.0]))
    assert not bool(keep.isnan().any())


def test_parameters_of_a_module_are_left_alone() -> None:
    pool = CpuGraphPool(NAN)
    linear, static = torch.nn.Linear(3, 2), torch.ones(1, 3)
    before = linear.weight.detach().clone()
    graph = pool.capture(lambda: linear(static))
    graph.replay()
    assert torch.equal(linear.weight.detach(), before)
    with torch.no_grad():
        assert torch.equal(graph.outputs, linear(static))


def test_a_buffer_that_a_kernel_keeps_is_not_taken_for_memory_of_the_pool() -> None:
    pool, static = CpuGraphPool(NAN), torch.ones(2)
    kept = torch.zeros(4)

    def kernel(x: torch.Tensor) -> torch.Tensor:
        kept[:2] = x
        return kept

    graph = pool.capture(lambda: launch(kernel, static))
    graph.replay()
    assert kept.tolist() == [1.0, 1.0, 0.0, 0.0]


def test_integers_of_the_pool_become_wrong_indices() -> None:
    pool, static = CpuGraphPool(NAN), torch.ones(2, dtype=torch.int32)
    first = pool.capture(lambda: static + 1)
    pool.capture(lambda: static + 2).replay()
    assert first.outputs.tolist() == [-1, -1]


@pytest.mark.parametrize(
    "poison", [None, Poison("nan", frozenset({"output"}))], ids=["none", "another site"]
)
def test_memory_stays_as_it_is_when_the_poison_does_not_cover_the_pool(
    poison: Poison | None,
) -> None:
    pool, static = CpuGraphPool(poison), torch.ones(3)
    first = pool.capture(lambda: static + 1)
    second = pool.capture(lambda: static + 2)
    first.replay()
    second.replay()
    assert torch.equal(first.outputs, torch.full((3,), 2.0))
