"""Captured decode steps, and two ways to keep a graph's split-KV plan up to date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from harness.core.seams import seam
from harness.engine.batch import Batch, DecodeMetadata
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import Forwarded, PagedModel
from harness.kernels.call import BoundKernel
from harness.memory.graph.interface import Graph, GraphPool, tensors_of
from harness.memory.poison.patterns import Poison


class PersistentPlans:
    """Plans made before each replay and copied into the captured tensors (model runner V1)."""

    def __init__(self, planner: BoundKernel, num_heads: int, options: Mapping[str, Any]) -> None:
        self._planner = planner
        self._num_heads = num_heads
        self._options = options
        self._plans: dict[int, Any] = {}

    def _plan(self, batch: Batch) -> Any:
        assert batch.decode is not None
        return self._planner(batch.decode.seq_lens, num_heads=self._num_heads, **self._options)

    def warmup_metadata(self, batch: Batch) -> DecodeMetadata:
        """Metadata for the run before the capture."""
        return DecodeMetadata(self._plan(batch))

    def capture_metadata(self, size: int, batch: Batch, warmed_up: DecodeMetadata) -> DecodeMetadata:
        """Metadata for the capture."""
        self._plans[size] = self._plan(batch)
        return DecodeMetadata(self._plans[size])

    def before_replay(self, size: int, batch: Batch) -> None:
        """Update the plan, unless the graph plans itself."""
        update_plan(self._plans, size, self._plan(batch))

    def current(self, size: int) -> Any:
        """The plan that the engine believes the graph of this size reads."""
        return self._plans[size]


class LazyPlans:
    """Plans made by the first layer of a forward, so a captured forward plans in each replay (model runner V2)."""

    def __init__(self) -> None:
        self._metadata: dict[int, DecodeMetadata] = {}

    def warmup_metadata(self, batch: Batch) -> DecodeMetadata:
        return DecodeMetadata()

    def capture_metadata(self, size: int, batch: Batch, warmed_up: DecodeMetadata) -> DecodeMetadata:
        self._metadata[size] = metadata_for_capture(warmed_up)
        return self._metadata[size]

    def before_replay(self, size: int, batch: Batch) -> None:
        return None

    def current(self, size: int) -> Any:
        return self._metadata[size].plan


Plans = PersistentPlans | LazyPlans


@seam("graph.fresh-plan-each-step")
def update_plan(plans: dict[int, Any], size: int, fresh: Any) -> None:
    """Copy the new plan of `size` into the captured tensors: the graph keeps reading their addresses."""
    for captured, new in zip(tensors_of(plans[size]), tensors_of(fresh), strict=True):
        captured.copy_(new)


@seam("graph.plan-in-warmup-only")
def metadata_for_capture(warmed_up: DecodeMetadata) -> DecodeMetadata:
    """Metadata without a plan, so that the capture records the planning. The warm-up's metadata has a plan."""
    return DecodeMetadata()


@dataclass(slots=True)
class DecodeGraphs:
    """One captured decode step for each size, on static inputs, all in one pool."""

    model: PagedModel
    static: Batch
    memory: PagedMemory
    plans: Plans
    pool: GraphPool
    has_changes: bool = False
    """Whether weights change, so that their addresses are judged as well."""
    _graphs: dict[int, Graph] = field(default_factory=dict)
    _captured: dict[int, dict[str, int]] = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        """The captured sizes, rising."""
        return sorted(self._graphs)

    def capture(self, size: int) -> None:
        """Run the model on the static inputs to warm up, then capture it."""
        batch = self.static.head(size)
        assert batch.decode is not None
        batch.decode.metadata = warmed_up = self.plans.warmup_metadata(batch)
        self.model.forward(batch, self.memory)
        batch.decode.metadata = self.plans.capture_metadata(size, batch, warmed_up)
        graph = self.pool.capture(lambda: self.model.forward(batch, self.memory))
        self._graphs[size] = graph
        self._captured[size] = self._addresses(size, batch, batch.decode.metadata.plan)

    def replay(self, size: int) -> Forwarded:
        """Replay the graph of `size` on the static inputs. The result is memory of the pool."""
        graph = self._graphs[size]
        with self.model.probe.on_replay():
            self.plans.before_replay(size, self.static.head(size))
            graph.replay()
        outputs: Forwarded = graph.outputs
        return outputs

    def bindings(self, size: int) -> list[tuple[str, str, int, int]]:
        """(input, site, captured address, address that the engine updates now) for each input of a graph."""
        current = self._addresses(size, self.static.head(size), self.plans.current(size))
        captured = self._captured[size]
        return [(name, _site(name), address, current.get(name, 0)) for name, address in captured.items()]

    def reads_stale_plan(self, size: int, fresh: Any) -> bool:
        """Whether the plan that the graph read differs from `fresh`, made for the same lengths."""
        for name, tensor in _named_tensors("plan.", fresh).items():
            read = self._graphs[size].tensor_at(self._captured[size][name])
            if read is None or not torch.equal(read.flatten(), tensor.flatten()):
                return True
        return False

    def unmap(self, poison: Poison) -> None:
        """Fill the memory of all graphs, as after a sleep."""
        for graph in self._graphs.values():
            for memory in graph.owned_memory():
                poison.fill_(memory, "graph.pool")

    def _addresses(self, size: int, batch: Batch, plan: Any) -> dict[str, int]:
        named = batch.tensors() | _named_tensors("plan.", plan)
        if self.model.kernels.workspace is not None:
            named["workspace.counters"] = self.model.kernels.workspace.counters(batch.num_decodes)
        found = {name: tensor.data_ptr() for name, tensor in named.items()}
        if self.has_changes:
            weights = self.model.tensors() | {f"constant {i}": t for i, t in enumerate(self.model.constants())}
            addresses = {f"weights.{name}": tensor.data_ptr() for name, tensor in weights.items()}
            held = self._captured.get(size)
            graph = self._graphs[size]
            found |= {n: at for n, at in addresses.items() if (n in held if held else graph.tensor_at(at) is not None)}
        return found


def _site(name: str) -> str:
    """The site to blame when a graph does not read the input `name` that the engine updates."""
    if name.startswith("plan."):
        return "sched_meta"
    if name.startswith("workspace."):
        return "workspace"
    if name.startswith("weights."):
        return "weights.gone"
    return "block_table.pad" if name in ("block_table", "window_table") else "graph.pad_rows"


def _named_tensors(prefix: str, plan: Any) -> dict[str, Tensor]:
    attributes = getattr(plan, "__dict__", {})
    return {prefix + name: value for name, value in attributes.items() if isinstance(value, Tensor)}
