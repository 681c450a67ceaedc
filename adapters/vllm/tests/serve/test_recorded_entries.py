"""The entries that DeepSeek V4's indexer chose, as `benchmarks/vllm_decisions.py` records them."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
import vllm_decisions

from canaries.recorded import Decider, unpacked


class Attention(torch.nn.Module):
    """The part of vLLM's `DeepseekV4Attention` that the recorder uses."""

    def __init__(self, buffer: torch.Tensor, *, has_indexer: bool) -> None:
        super().__init__()
        self.topk_indices_buffer = buffer
        self.indexer = torch.nn.Identity() if has_indexer else None

    def forward_mqa(self, rows: torch.Tensor) -> str:
        # What comes after uses the same buffer again.
        self.topk_indices_buffer[: len(rows)] = 99
        return "attended"


def test_each_layer_with_an_indexer_keeps_what_it_chose_before_the_next_one_writes() -> None:
    shared = torch.full((8, 3), -1, dtype=torch.int32)
    layers = torch.nn.ModuleList([Attention(shared, has_indexer=at > 0) for at in range(3)])
    model = torch.nn.Module()
    model.layers = layers
    batch = SimpleNamespace(req_ids=["0-aaaaaaaa"], positions=torch.arange(2))
    runner: Any = SimpleNamespace(
        device="cpu",
        get_model=lambda: model,
        vllm_config=SimpleNamespace(scheduler_config=SimpleNamespace(max_num_batched_tokens=8)),
        execute_model_state=SimpleNamespace(input_batch=batch),
    )
    recorder = vllm_decisions.Recorder()
    recorder.attach(runner)
    for at, layer in enumerate(layers):
        rows = torch.tensor([[at, -1, -1], [at + 2, at, -1]], dtype=torch.int32)
        shared[:2] = rows
        assert layer.forward_mqa(rows) == "attended"
    recorder.after_step(runner, SimpleNamespace(num_scheduled_tokens={"0-aaaaaaaa": 2}))
    assert recorder.problems == []
    found = unpacked(recorder.request("0"))
    assert {decider: ids.tolist() for decider, ids in found.items()} == {
        Decider(1, "index"): [[-1, -1, 1], [-1, 1, 3]],
        Decider(2, "index"): [[-1, -1, 2], [-1, 2, 4]],
    }
