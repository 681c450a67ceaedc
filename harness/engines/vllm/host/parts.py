"""What of vLLM can be judged without a GPU: one name for each module of this package."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable
from typing import Any, Protocol, cast

from harness.engines.vllm.params import VllmHostParams
from harness.judge.run_records import Run
from harness.memory.poison.patterns import Poison

PARTS = {
    "new-blocks": "harness.engines.vllm.host.new_blocks",
    "decode-plan": "harness.engines.vllm.host.decode_plan",
    "graph-capture": "harness.engines.vllm.host.graph_capture",
    "prefill-merge": "harness.engines.vllm.host.prefill_merge",
    "padded-decode": "harness.engines.vllm.host.padded_decode",
    "batch-order": "harness.engines.vllm.host.batch_order",
}


class Part(Protocol):
    """A module that runs some of vLLM's code on inputs of its own."""

    def run(self, poison: Poison, params: VllmHostParams) -> Run:
        """Run it under `poison` from its beginning; whatever it replaces in vLLM is put back before it returns."""
        ...


def part(name: str) -> Part:
    """The module of a part; importing it imports what it needs of vLLM."""
    return cast(Part, importlib.import_module(PARTS[name]))


def accepted(arguments: dict[str, Any], *functions: Callable[..., Any]) -> dict[str, Any]:
    """Those of `arguments` that one of the functions names: what a release asks for and another does not know."""
    named = {name for function in functions for name in inspect.signature(function).parameters}
    return {name: value for name, value in arguments.items() if name in named}


def generator(poison: Poison) -> Any:
    """Random numbers that depend on the case alone, so that runs under two patterns have the same inputs."""
    import torch

    return torch.Generator().manual_seed(poison.seed)
