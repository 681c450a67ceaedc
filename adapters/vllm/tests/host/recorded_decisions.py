"""Run with a release on the path: the recorder of decisions, and the small bugs, on vLLM's own
routers and layers.

Prints a line of JSON. The runner's step is a stand-in; its class, its batch and the objects with
the hooks are vLLM's.
"""

from __future__ import annotations

import dataclasses
import json
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

SCORES = torch.tensor([[0.9, 0.1, 0.2, 0.8], [0.1, 0.9, 0.8, 0.2], [0.8, 0.7, 0.1, 0.2]])
TOKENS = 8
"""Rows of the batch: more than a step has."""


class Attention(nn.Module):
    """A sparse layer after its indexer."""

    def __init__(self, impl: Any) -> None:
        super().__init__()
        self.impl = impl


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        from vllm.model_executor.layers.fused_moe.router.grouped_topk_router import (
            GroupedTopKRouter,
        )
        from vllm.v1.attention.backends.mla.flashmla_sparse import FlashMLASparseImpl

        self.buffer = torch.full((TOKENS, 4), -1, dtype=torch.int32)
        impl = FlashMLASparseImpl.__new__(FlashMLASparseImpl)
        impl.init_topk_indices_buffer(None, self.buffer)
        impl.index_group = None
        impl.scale = impl.softmax_scale = 1.0
        experts = nn.Module()
        experts.router = GroupedTopKRouter(
            2, 4, 1, 1, e_score_correction_bias=torch.zeros(4), scoring_func="sigmoid"
        )
        rotary = nn.Module()
        rotary.register_buffer("cos_sin_cache", torch.arange(300.0)[:, None].repeat(1, 4))
        norm = nn.Module()
        norm.eps = 1e-5
        parts = {"self_attn": Attention(impl), "mlp": experts, "rotary_emb": rotary, "o_norm": norm}
        self.layers = nn.ModuleList([nn.ModuleDict(), nn.ModuleDict(parts)])

    def run(self, positions: list[int]) -> None:
        """Choose for rows at positions: each takes the latest four tokens."""
        self.buffer[: len(positions)] = -1
        for row, position in enumerate(positions):
            latest = torch.arange(max(0, position - 3), position + 1)
            self.buffer[row, : len(latest)] = latest
        layer: Any = self.layers[1]
        layer["self_attn"].impl.record_logical_topk_ready()
        layer["mlp"].router.select_experts(SCORES[: len(positions)], SCORES[: len(positions)])


def runner_class() -> Any:
    """vLLM's second runner, whose step only runs the model above."""
    from vllm.v1.worker.gpu import model_runner

    kind = model_runner.GPUModelRunner
    assert {"req_ids", "positions"} <= {
        field.name for field in dataclasses.fields(model_runner.InputBatch)
    }
    assert "input_batch" in model_runner.ExecuteModelState._fields

    def load_model(self: Any) -> None:
        self.model = Model()

    def execute_model(self: Any, scheduler_output: Any, dummy_run: bool = False) -> None:
        names = model_runner.sort_batch_req_ids(scheduler_output.num_scheduled_tokens, {}, 1)
        positions = [at for name in names for at in scheduler_output.positions[name]]
        batch = SimpleNamespace(req_ids=names, positions=torch.tensor([*positions, 0, 0]))
        self.execute_model_state = SimpleNamespace(input_batch=batch)
        self.model.run(positions)

    kind.load_model, kind.execute_model, kind.get_model = (
        load_model,
        execute_model,
        lambda self: self.model,
    )
    return kind


def steps() -> Iterator[Any]:
    """A warm-up, a prompt beside a decode, and a decode."""
    for positions in (
        {"_warmup_0": [0, 1]},
        {"7-aaaaaaaa": [4, 5], "8-bbbbbbbb": [5]},
        {"7-aaaaaaaa": [6]},
    ):
        counts = {name: len(places) for name, places in positions.items()}
        yield SimpleNamespace(num_scheduled_tokens=counts, positions=positions)


def main() -> None:
    torch.set_num_threads(1)
    import vllm_decisions
    import vllm_faults

    fault = sys.argv[1] if len(sys.argv) > 1 else ""
    kind = runner_class()
    if fault:
        vllm_faults.install(fault)
    recorder = vllm_decisions.install()
    runner: Any = kind.__new__(kind)
    runner.device = torch.device("cpu")
    runner.vllm_config = SimpleNamespace(
        scheduler_config=SimpleNamespace(max_num_batched_tokens=TOKENS)
    )
    runner.load_model()
    for step in steps():
        runner.execute_model(step)
    layer = runner.model.layers[1]
    print(
        json.dumps(
            {
                "requests": {
                    name: recorder.safely(recorder.request, name) for name in ("7", "8", "9")
                },
                "problems": recorder.problems,
                "scales": [layer["self_attn"].impl.scale, layer["self_attn"].impl.softmax_scale],
                "rope": layer["rotary_emb"].cos_sin_cache[199:202, 0].tolist(),
                "epsilon": layer["o_norm"].eps,
            }
        )
    )


if __name__ == "__main__":
    main()
