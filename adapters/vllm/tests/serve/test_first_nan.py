"""The recorder in a vLLM worker, on a runner that has what vLLM's runners have."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from mla_harness_vllm.serve import first_nan, hooks, plugin
from mla_harness_vllm.serve.settings import FIRST_NAN_VARIABLE
from tests.transcripts import Approved, lines_with


class Attention(nn.Module):
    """An MLA layer's module, whose `impl` is no module."""

    def __init__(self, impl: Any) -> None:
        super().__init__()
        self.impl = impl

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.impl.forward_mha(x, output := torch.empty_like(x))
        return output + self.impl.forward_mqa(x)[0]


class Impl:
    breaks = False

    def forward_mqa(self, q: torch.Tensor) -> tuple[torch.Tensor, None]:
        return (q / 0.0 * 0.0 if self.breaks else q), None

    def forward_mha(self, q: torch.Tensor, output: torch.Tensor) -> None:
        output.copy_(q)


class Router:
    global_num_experts = 4

    def __init__(self) -> None:
        self.offset = 0

    def select_experts(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return x, torch.arange(len(x), dtype=torch.int32)[:, None] % 4 + self.offset


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = Router()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + 0.0 * self.router.select_experts(x)[1]


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(
            [nn.Sequential(nn.Linear(4, 4), Attention(Impl()), Experts()) for _ in range(2)]
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


class Runner:
    """Pads each step to four rows, which hold NaN."""

    device = torch.device("cpu")

    def __init__(self) -> None:
        self.input_batch = SimpleNamespace(req_ids=["b", "a"])

    def load_model(self) -> None:
        self.model = Model().requires_grad_(False)

    def get_model(self) -> nn.Module:
        return self.model

    def execute_model(self, scheduler_output: Any, dummy_run: bool = False) -> torch.Tensor:
        x = torch.full((4, 4), torch.nan)
        x[: scheduler_output.total_num_scheduled_tokens] = 1.0
        out: torch.Tensor = self.model(x)
        return out


def step(**counts: int) -> Any:
    return SimpleNamespace(
        num_scheduled_tokens=counts,
        total_num_scheduled_tokens=sum(counts.values()),
        scheduled_new_reqs=[],
    )


@pytest.fixture
def runner(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Runner]:
    """A loaded runner with the recorder, which writes below `tmp_path`."""
    kind = type(
        "Wrapped",
        (Runner,),
        {"load_model": Runner.load_model, "execute_model": Runner.execute_model},
    )
    monkeypatch.setitem(sys.modules, "fake_runner", SimpleNamespace(Runner=kind))  # type: ignore[arg-type]
    monkeypatch.setattr(hooks, "RUNNERS", ("fake_runner:Runner", "no_such_module:Runner"))
    monkeypatch.setattr(first_nan.atexit, "register", lambda function: function)
    monkeypatch.delenv("VLLM_DISABLE_COMPILE_CACHE", raising=False)
    before = signal.getsignal(signal.SIGUSR2)
    first_nan.install(str(tmp_path))
    assert os.environ["VLLM_DISABLE_COMPILE_CACHE"] == "1"
    made = kind()
    made.load_model()
    yield made
    signal.signal(signal.SIGUSR2, before)


def recorder() -> first_nan.WorkerRecorder:
    """The recorder of the runner that was loaded last."""
    return first_nan.RECORDERS[-1]


def found() -> Any:
    return recorder().report()


def test_padding_warm_ups_and_dummy_runs_are_nobodys(runner: Runner) -> None:
    runner.model(torch.full((4, 4), torch.nan))
    runner.execute_model(step(a=1, b=1))
    runner.execute_model(step(), dummy_run=True)
    assert found() is None
    assert len(recorder().steps.table.scanned()) > 8


def test_decode_attention_is_named_with_layer_step_phase_request_and_rank(
    runner: Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    runner.execute_model(step(a=1, b=1))
    monkeypatch.setattr(recorder(), "rank", 3)
    runner.model.layers[1][1].impl.breaks = True
    runner.execute_model(step(a=1, b=1))
    seen = found()
    assert (seen.writer, seen.layer, seen.step) == ("layers.1.1.forward_mqa", 1, 1)
    assert (seen.phase, seen.request, seen.rank) == ("decode", "b", 3)
    assert seen.before == "layers.1.1.forward_mha output"


def test_ids_past_the_last_expert_are_named_before_what_comes_of_them(
    runner: Runner, approved: Approved
) -> None:
    runner.model.layers[0][2].router.offset = 1
    runner.execute_model(step(a=1, b=1))
    assert found() is None
    runner.model.layers[0][2].router.offset = 3
    runner.execute_model(step(a=1, b=1))
    seen = found()
    assert (seen.writer, seen.tensor) == ("layers.0.2.select_experts", "topk_ids")
    approved(seen.statement)


def test_prefill_attention_is_seen_in_the_tensor_that_it_fills(runner: Runner) -> None:
    runner.model.layers[0][0].weight[0, 0] = torch.inf
    runner.execute_model(step(a=2, b=1))
    assert found().writer == "layers.0.0" and found().phase == "mixed"
    recorder().steps.table.rearm()
    runner.execute_model(step(a=2, b=1))
    events = {slot.op for slot, _, _ in recorder().steps.table.recent()[0]}
    assert "layers.0.1.forward_mha" in events


def test_asked_between_steps_it_tells_at_once(
    runner: Runner, tmp_path: Path, capsys: pytest.CaptureFixture[str], approved: Approved
) -> None:
    runner.model.layers[1][1].impl.breaks = True
    runner.execute_model(step(a=1, b=1))
    os.kill(os.getpid(), signal.SIGUSR2)
    assert (
        json.loads((tmp_path / "first-nan-rank0.json").read_text())["writer"]
        == "layers.1.1.forward_mqa"
    )
    said = lines_with(capsys.readouterr().err, "first NaN")
    # The sign of a NaN that a processor makes is the processor's.
    approved(re.sub(r"bits \S+", "bits BITS", said))


def test_asked_within_a_step_it_tells_at_the_steps_end(
    runner: Runner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file, seen = tmp_path / "first-nan-rank0.json", []
    forward = runner.model.forward

    def asks(*args: object) -> object:
        os.kill(os.getpid(), signal.SIGUSR2)
        seen.append(file.exists())
        return forward(*args)

    monkeypatch.setattr(runner.model, "forward", asks)
    runner.model.layers[1][1].impl.breaks = True
    runner.execute_model(step(a=1, b=1))
    assert seen == [False] and json.loads(file.read_text())["writer"] == "layers.1.1.forward_mqa"


def test_requests_of_a_warm_up_are_nobodys(runner: Runner) -> None:
    runner.model.layers[1][1].impl.breaks = True
    for names in ({"_warmup_0_": 1, "_warmup_1_": 1}, {"_v2_mixed_warmup_0_": 2}):
        runner.execute_model(step(**names))
    assert found() is None
    runner.execute_model(step(_warmup_0_=1, a=1))
    assert found().writer == "layers.1.1.forward_mqa"


def test_captures_of_several_sizes_take_no_new_slots(runner: Runner) -> None:
    before = len(recorder().steps.table.slots)
    for size in (1, 2, 4):
        runner.model(torch.zeros(size, 4))
    assert len(recorder().steps.table.slots) == before


def test_the_second_runners_rows_are_sorted_by_tokens() -> None:
    assert first_nan.request_order(SimpleNamespace(), {"long": 9, "a": 1, "b": 1}) == [
        "a",
        "b",
        "long",
    ]
    known = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["b", "gone", "a"]))
    assert first_nan.request_order(known, {"a": 1, "b": 1}) == ["b", "a"]


def test_the_plug_in_installs_it_when_asked_and_imports_nothing_otherwise(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    code = (
        "import sys, mla_harness_vllm.serve.plugin as plugin; plugin.activate(); "
        "sys.exit('torch' in sys.modules or 'harness.memory.first_nan.table' in sys.modules)"
    )
    environ = {k: v for k, v in os.environ.items() if not k.startswith("MLA_HARNESS_")}
    assert not subprocess.run([sys.executable, "-c", code], env=environ, check=False).returncode
    assert not subprocess.run(
        [sys.executable, "-c", code], env={**environ, FIRST_NAN_VARIABLE: "0"}, check=False
    ).returncode
    asked: list[str] = []
    monkeypatch.setattr(first_nan, "install", lambda where: asked.append(where) or [])
    monkeypatch.setattr(plugin, "INSTALLED", {})
    monkeypatch.setenv(FIRST_NAN_VARIABLE, "1")
    monkeypatch.delenv("MLA_HARNESS_POISON", raising=False)
    plugin.activate()
    plugin.activate()
    assert asked == ["1"]
