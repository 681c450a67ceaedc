"""A recording keeps the three facts of captured graphs: fixed addresses, no Python, no
allocation.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch_poison.patterns import Poison

from harness.core.errors import CaptureError
from harness.memory.graph.launch import eager_part, launch
from harness.memory.graph.recording import CpuGraph, CpuGraphPool
from tests.transcripts import Approved


def capture(function: Callable[[], Any]) -> CpuGraph:
    return CpuGraphPool().capture(function)


def test_a_replay_follows_what_is_written_into_a_captured_tensor() -> None:
    static = torch.ones(3)
    graph = capture(lambda: (static * 2).sum())
    static.copy_(torch.tensor([1.0, 2.0, 3.0]))
    graph.replay()
    assert graph.outputs.item() == 12


def test_a_replay_does_not_follow_a_name_that_is_bound_to_another_tensor() -> None:
    holder = {"static": torch.ones(3)}
    graph = capture(lambda: holder["static"] * 2)
    holder["static"] = torch.full((3,), 5.0)
    graph.replay()
    assert torch.equal(graph.outputs, torch.full((3,), 2.0))


def test_a_replay_does_not_follow_an_attribute_of_metadata_that_is_rebound() -> None:
    class Metadata:
        def __init__(self) -> None:
            self.plan = torch.ones(2)

    metadata = Metadata()
    first = metadata.plan
    graph = capture(lambda: launch(lambda given: given.plan * 2, metadata))
    metadata.plan = torch.full((2,), 9.0)
    graph.replay()
    assert torch.equal(graph.outputs, torch.full((2,), 2.0))
    first.fill_(4.0)
    graph.replay()
    assert torch.equal(graph.outputs, torch.full((2,), 8.0))


def test_python_does_not_run_again() -> None:
    calls = []

    def function() -> torch.Tensor:
        calls.append(1)
        return torch.ones(2) + len(calls)

    graph = capture(function)
    graph.replay()
    graph.replay()
    assert calls == [1]
    assert torch.equal(graph.outputs, torch.full((2,), 2.0))


def test_an_allocation_is_not_made_again() -> None:
    memory = []

    def function() -> torch.Tensor:
        out = torch.empty(4)
        memory.append(out.data_ptr())
        out[:2] = 1.0
        return out

    graph = capture(function)
    graph.outputs[2:] = 7.0
    graph.replay()
    assert graph.outputs.data_ptr() == memory[0]
    assert graph.outputs.tolist() == [1.0, 1.0, 7.0, 7.0]


def test_the_result_of_a_functional_op_lands_where_the_capture_put_it() -> None:
    static = torch.arange(6.0)
    graph = capture(lambda: static.view(2, 3).t().contiguous().softmax(0))
    address = graph.outputs.data_ptr()
    static.copy_(torch.arange(6.0).flip(0))
    graph.replay()
    assert graph.outputs.data_ptr() == address
    assert torch.equal(graph.outputs, static.view(2, 3).t().contiguous().softmax(0))


def test_views_of_a_captured_tensor_show_its_new_content() -> None:
    static = torch.zeros(4, 2)
    graph = capture(lambda: static[1:3].unsqueeze(0).transpose(1, 2))
    static.copy_(torch.arange(8.0).view(4, 2))
    graph.replay()
    assert graph.launches == []
    assert torch.equal(graph.outputs, static[1:3].unsqueeze(0).transpose(1, 2))


def test_in_place_ops_write_into_their_captured_argument_once_a_replay() -> None:
    static, counter = torch.ones(2), torch.zeros(2)

    def function() -> torch.Tensor:
        counter.add_(static)
        counter[0] = 100.0
        return counter

    graph = capture(function)
    static.fill_(3.0)
    graph.replay()
    assert counter.tolist() == [100.0, 4.0]


def test_a_split_gives_outputs_that_follow_their_input() -> None:
    static = torch.arange(4.0)
    graph = capture(lambda: [part + 1 for part in static.split(2)])
    static.mul_(10)
    graph.replay()
    assert [part.tolist() for part in graph.outputs] == [[1.0, 11.0], [21.0, 31.0]]


def test_a_launch_is_one_node_and_runs_its_own_python_again() -> None:
    calls = []

    def kernel(x: torch.Tensor, *, factor: float) -> torch.Tensor:
        calls.append(float(x.sum()))
        return x[x > 0] * factor if x.numel() > 4 else x * factor

    static = torch.ones(2)
    graph = capture(lambda: launch(kernel, static, factor=3.0) + 1)
    static.fill_(2.0)
    graph.replay()
    assert len(graph.launches) == 2 and "kernel" in graph.launches[0]
    assert calls == [2.0, 4.0]
    assert torch.equal(graph.outputs, torch.full((2,), 7.0))


def test_a_launch_inside_a_launch_belongs_to_the_outer_one() -> None:
    def inner(x: torch.Tensor) -> torch.Tensor:
        return x + 1

    static = torch.ones(1)
    graph = capture(lambda: launch(lambda x: launch(inner, x) * 2, static))
    assert len(graph.launches) == 1


def test_a_launch_that_returns_another_shape_than_when_captured_is_refused(
    approved: Approved,
) -> None:
    static = torch.ones(3)
    graph = capture(lambda: launch(lambda x: x[x > 0].clone(), static))
    static[0] = -1.0
    with approved.raises(CaptureError):
        graph.replay()


@pytest.mark.parametrize(
    "read",
    [
        lambda x: x.sum().item(),
        lambda x: bool(x.any()),
        lambda x: x.nonzero(),
        lambda x: x[x > 0],
        lambda x: x.masked_select(x > 0),
        lambda x: x.index_put_((x > 0,), torch.zeros(1)),
        lambda x: x + torch.tensor([3.0]),
        lambda x: torch.equal(x, x),
    ],
    ids=[
        "item",
        "bool",
        "nonzero",
        "mask",
        "masked_select",
        "mask-assignment",
        "host-tensor",
        "equal",
    ],
)
def test_reading_a_device_value_on_the_host_cannot_be_captured(
    read: Callable[[torch.Tensor], Any],
) -> None:
    static = torch.ones(3)
    with pytest.raises(CaptureError):
        capture(lambda: read(static))


def test_reading_a_device_value_inside_a_launch_can_be_captured() -> None:
    static = torch.ones(3)
    graph = capture(lambda: launch(lambda x: x * x.sum().item(), static))
    static.fill_(2.0)
    graph.replay()
    assert torch.equal(graph.outputs, torch.full((3,), 12.0))


def test_indexing_by_integers_can_be_captured() -> None:
    static, index = torch.arange(4.0), torch.tensor([0, 1])
    graph = capture(lambda: static[index])
    index.copy_(torch.tensor([3, 2]))
    graph.replay()
    assert graph.outputs.tolist() == [3.0, 2.0]


def test_a_failed_capture_leaves_no_recorder_behind() -> None:
    static = torch.ones(3)
    with pytest.raises(CaptureError):
        capture(lambda: static.sum().item())
    assert launch(lambda x: x + 1, static).tolist() == [2.0, 2.0, 2.0]
    assert capture(lambda: static + 1).launches != []


def test_an_address_leads_to_what_the_graph_reads_there() -> None:
    static = torch.ones(3)
    graph = capture(lambda: static * 2)
    read = graph.tensor_at(static.data_ptr())
    assert read is not None and torch.equal(read, static)
    assert graph.tensor_at(torch.ones(3).data_ptr()) is None


def in_parts(keep: Callable[[int, Any], Any]) -> tuple[torch.Tensor, CpuGraph]:
    """A graph of (2 * x + 1) * 10 whose addition is an eager part."""
    static = torch.ones(3)
    pool = CpuGraphPool(Poison("nan", sites=frozenset({"graph.pool"})))
    graph = pool.capture_in_parts(
        lambda: eager_part(lambda x: x + 1, static * 2) * 10, "the graph", keep
    )
    return static, graph


def test_a_graph_in_parts_calls_its_eager_part_in_each_replay_and_reads_what_it_kept() -> None:
    kept = []
    static, graph = in_parts(lambda number, result: kept.append(result) or result)
    static.fill_(4.0)
    graph.replay()
    assert torch.equal(graph.outputs, torch.full((3,), 90.0)) and graph.stale_reads == []


def test_a_result_of_an_eager_part_without_an_owner_is_filled_before_the_next_segment_reads_it(
    approved: Approved,
) -> None:
    _, graph = in_parts(lambda number, result: result)
    graph.replay()
    (stale,) = graph.stale_reads
    assert graph.outputs.isnan().all()
    approved(stale)
