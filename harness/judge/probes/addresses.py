"""The addresses that captured graphs read, beside the ones that the engine updates before a
replay.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from harness.core.engine_params import EngineParams
from harness.engine.batch import Batch, tensors_by_name
from harness.engine.paged_model import PagedModel
from harness.evidence.addresses import Binding
from harness.memory.graph.interface import Graph


class GraphAddresses:
    """The address of each input of each graph, at its capture.

    Weights are inputs in a case with changes.
    """

    def __init__(self, model: PagedModel, params: EngineParams) -> None:
        self._model = model
        self._params = params
        self._graphs: dict[int, Graph] = {}
        self._captured: dict[int, dict[str, int]] = {}

    def capture(self, inputs: Batch, graph: Graph) -> None:
        """Keep the addresses of the inputs of `graph`."""
        self._graphs[inputs.num_decodes] = graph
        self._captured[inputs.num_decodes] = self._addresses(inputs)

    def bindings(self, inputs: Batch, step: int) -> list[Binding]:
        """Each input of the graph that a step replayed on `inputs`, as the engine updated them."""
        size = inputs.num_decodes
        current = self._addresses(inputs)
        return [
            Binding(
                step,
                f"{name} of the graph of {size}",
                site_of(name),
                captured,
                current.get(name, 0),
            )
            for name, captured in self._captured[size].items()
        ]

    def is_stale(self, size: int, fresh: Any) -> bool:
        """Whether the plan that the graph of `size` read differs from `fresh`, made for the same
        lengths.
        """
        for name, tensor in plan_tensors(fresh).items():
            read = self._graphs[size].tensor_at(self._captured[size][name])
            # A whole graph that does not use this tensor reads another plan. A breakable graph uses
            # none: its eager parts read the plan.
            in_parts = self._params.graph == "breakable"
            if not (in_parts if read is None else torch.equal(read.flatten(), tensor.flatten())):
                return True
        return False

    def stale_reads(self, size: int) -> list[str]:
        """The memory without an owner that the graph of `size` read in its newest replay."""
        return self._graphs[size].stale_reads

    def _addresses(self, inputs: Batch) -> dict[str, int]:
        assert inputs.decode is not None
        size = inputs.num_decodes
        workspace = self._model.kernels.workspace
        named = (
            tensors_by_name(inputs)
            | tensors_by_name(inputs.decode)
            | plan_tensors(inputs.decode.metadata.plan)
        )
        if workspace is not None:
            named["workspace.counters"] = workspace.counters(size)
        found = {name: tensor.data_ptr() for name, tensor in named.items()}
        if self._params.changes:
            weights = self._model.tensors() | {
                f"constant {i}": t for i, t in enumerate(self._model.constants())
            }
            addresses = {f"weights.{name}": tensor.data_ptr() for name, tensor in weights.items()}
            held = self._captured.get(size)
            graph = self._graphs[size]
            # At the capture, the weights that the graph reads. Later the same names, wherever they
            # lie now.
            found |= {
                n: at
                for n, at in addresses.items()
                if (n in held if held else graph.tensor_at(at) is not None)
            }
        return found


def site_of(name: str) -> str:
    """The site to blame when a graph does not read the input `name` that the engine updates."""
    sites = {"plan": "sched_meta", "workspace": "workspace", "weights": "weights.gone"}
    is_table = name in ("block_table", "window_table")
    return sites.get(name.partition(".")[0], "block_table.pad" if is_table else "graph.pad_rows")


def plan_tensors(plan: Any) -> dict[str, Tensor]:
    """The tensors of a split-KV plan by name; none of a plan that is None."""
    attributes = getattr(plan, "__dict__", {})
    return {
        f"plan.{name}": value for name, value in attributes.items() if isinstance(value, Tensor)
    }
