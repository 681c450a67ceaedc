"""`harness.first_nan` on any module: eager, compiled, recorded and replayed."""

from __future__ import annotations

import pytest
import torch
from torch import nn

import harness
from harness.memory.graph.recording import CpuGraphPool
from tests.transcripts import Approved

from .hooks import has_hooks  # type: ignore[import-not-found]


class Model(nn.Module):
    """Three linear layers; with `breaks` something between the second and the third divides 0
    by 0.
    """

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(4)
        self.layers = nn.ModuleList(nn.Linear(4, 4) for _ in range(3))
        self.breaks = False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.norm(x)
        for index, layer in enumerate(self.layers):
            x = layer(x)
            if self.breaks and index == 1:
                x = torch.zeros_like(x) / 0.0
        return x


@pytest.fixture
def model() -> Model:
    torch.manual_seed(0)
    return Model().eval().requires_grad_(False)


def test_a_clean_model_is_silent_and_a_module_that_breaks_is_named(
    model: Model, approved: Approved
) -> None:
    with harness.first_nan(model) as recorder:
        model(torch.randn(5, 4))
        assert recorder.report() is None and "nothing" not in str(recorder)
        model.layers[1].weight[2, 0] = torch.inf
        model(torch.randn(5, 4))
    found = recorder.report()
    assert found is not None
    assert (found.writer, found.layer, found.step, found.before) == (
        "layers.1",
        1,
        2,
        "layers.0 output",
    )
    approved(str(recorder))


def test_with_inputs_it_tells_the_code_between_two_modules(model: Model) -> None:
    model.breaks = True
    with harness.first_nan(model, inputs=True) as recorder:
        model(torch.randn(5, 4))
    found = recorder.report()
    assert found is not None and found.is_input
    assert (found.writer, found.before) == ("layers.2", "layers.1 output")


def test_it_says_which_inputs_were_still_finite(model: Model) -> None:
    model.layers[0].bias[1] = torch.nan
    with harness.first_nan(model, inputs=True) as recorder:
        model(torch.randn(5, 4))
    found = recorder.report()
    assert found is not None and (found.writer, found.finite, found.not_finite) == (
        "layers.0",
        ("input",),
        (),
    )


def test_leaving_the_block_takes_the_hooks_away(model: Model) -> None:
    with harness.first_nan(model) as recorder:
        assert has_hooks(model)
    model.layers[0].bias[1] = torch.nan
    model(torch.randn(5, 4))
    assert recorder.report() is None
    assert not has_hooks(model)


def test_a_module_called_twice_in_a_step_has_a_slot_for_each_call(model: Model) -> None:
    twice = nn.Sequential(model.norm, model.norm)
    with harness.first_nan(twice) as recorder:
        twice(torch.randn(2, 4))
        twice(torch.randn(2, 4))
    assert [slot.call for slot in recorder.table.scanned() if slot.op == "0"] == [
        ("0", 0),
        ("0", 1),
    ]


@pytest.mark.parametrize("compiled", [False, True])
def test_rows_of_padding_are_not_reported_compiled_or_not(model: Model, compiled: bool) -> None:
    live, x = torch.tensor([3], dtype=torch.int32), torch.randn(5, 4)
    x[3:] = torch.nan
    with harness.first_nan(model, live_rows=live) as recorder:
        call = torch.compile(model, backend="aot_eager", fullgraph=True) if compiled else model
        call(x)
        assert recorder.report() is None
        live.fill_(4)
        call(x)
        found = recorder.report()
    assert found is not None and (found.writer, found.step, found.where) == (
        "norm",
        2,
        "row 3, element 0",
    )


def test_replays_of_a_captured_forward_record(model: Model) -> None:
    x = torch.randn(5, 4)
    with harness.first_nan(model) as recorder:
        model(x)
        graph = CpuGraphPool().capture(lambda: model(x))
    graph.replay()
    assert recorder.report() is None
    x[2, 1] = torch.nan
    graph.replay()
    found = recorder.report()
    assert found is not None and (found.writer, found.step, found.where) == (
        "norm",
        4,
        "row 2, element 0",
    )


def test_a_module_whose_result_is_no_tensor_is_passed_over() -> None:
    class Words(nn.Module):
        def forward(self, x: torch.Tensor) -> dict[str, torch.Tensor]:
            return {"x": x}

    with harness.first_nan(Words()) as recorder:
        Words()(torch.full((1, 1), torch.nan))
    assert recorder.report() is None
