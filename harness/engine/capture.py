"""Captured decode steps, and two ways to keep a graph's split-KV plan up to date."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch_poison.patterns import Poison
from torch_poison.storages import tensors_of

from harness.core.seams import seam
from harness.engine.batch import Batch, DecodeMetadata
from harness.engine.memory import PagedMemory
from harness.engine.paged_model import Forwarded, PagedModel
from harness.engine.probe import Probe
from harness.kernels.call import BoundKernel
from harness.memory.graph.interface import Graph, GraphPool

Bridges = dict[tuple[int, ...], Any]
"""The results of eager parts that segments read, by size of the graph and number of the part."""


@dataclass(slots=True)
class PersistentPlans:
    """Plans made before each replay and copied into the captured tensors (model runner V1)."""

    planner: BoundKernel
    num_heads: int
    options: Mapping[str, Any]
    # One plan for each size, at the addresses that its graph captured.
    _plans: dict[int, Any] = field(default_factory=dict)

    def _plan(self, batch: Batch) -> Any:
        assert batch.decode is not None
        return self.planner(batch.decode.seq_lens, num_heads=self.num_heads, **self.options)

    def warmup_metadata(self, batch: Batch) -> DecodeMetadata:
        """Metadata for the run before the capture."""
        return DecodeMetadata(self._plan(batch))

    def capture_metadata(
        self, size: int, batch: Batch, warmed_up: DecodeMetadata
    ) -> DecodeMetadata:
        self._plans[size] = self._plan(batch)
        return DecodeMetadata(self._plans[size])

    def before_replay(self, size: int, batch: Batch) -> DecodeMetadata:
        """Update the plan, unless the graph plans itself.

        Returns the metadata that the graph should read.
        """
        update_plan(self._plans, size, self._plan(batch))
        return DecodeMetadata(self._plans[size])


class LazyPlans:
    """Plans made by the first layer of a forward, so a captured forward plans in each replay (model
    runner V2).
    """

    def __init__(self) -> None:
        self._metadata: dict[int, DecodeMetadata] = {}

    def warmup_metadata(self, batch: Batch) -> DecodeMetadata:
        return DecodeMetadata()

    def capture_metadata(
        self, size: int, batch: Batch, warmed_up: DecodeMetadata
    ) -> DecodeMetadata:
        self._metadata[size] = metadata_for_capture(warmed_up)
        return self._metadata[size]

    def before_replay(self, size: int, batch: Batch) -> DecodeMetadata:
        return self._metadata[size]


Plans = PersistentPlans | LazyPlans


@seam("graph.fresh-plan-each-step")
def update_plan(plans: dict[int, Any], size: int, fresh: Any) -> None:
    """Copy the new plan of `size` into the captured tensors: the graph keeps reading their
    addresses.
    """
    for captured, new in zip(tensors_of(plans[size]), tensors_of(fresh), strict=True):
        captured.copy_(new)


@seam("graph.plan-in-warmup-only")
def metadata_for_capture(warmed_up: DecodeMetadata) -> DecodeMetadata:
    """Metadata without a plan, so that the capture records the planning.

    The warm-up's metadata has a plan.
    """
    return DecodeMetadata()


@dataclass(slots=True)
class DecodeGraphs:
    """One captured decode step for each size, on static inputs, all in one pool.

    With `in_parts` the attention of each layer is an eager part, as in a breakable graph.
    """

    model: PagedModel
    static: Batch
    memory: PagedMemory
    plans: Plans
    pool: GraphPool
    probe: Probe
    in_parts: bool = False
    _graphs: dict[int, Graph] = field(default_factory=dict)
    _bridges: Bridges = field(default_factory=dict)

    @property
    def sizes(self) -> list[int]:
        return sorted(self._graphs)

    def capture(self, size: int) -> None:
        """Run the model on the static inputs to warm up, then capture it."""
        inputs = self.static.head(size)
        assert inputs.decode is not None
        inputs.decode.metadata = warmed_up = self.plans.warmup_metadata(inputs)
        # The warm-up compiles and plans: a capture may do neither.
        self.model.forward(inputs, self.memory)
        inputs.decode.metadata = self.plans.capture_metadata(size, inputs, warmed_up)
        forward = functools.partial(self.model.forward, inputs, self.memory)
        if self.in_parts:
            keep = functools.partial(bridge, self._bridges, size)
            self._graphs[size] = self.pool.capture_in_parts(forward, f"the graph of {size}", keep)
        else:
            self._graphs[size] = self.pool.capture(forward)
        self.probe.on_capture(inputs, self._graphs[size])

    def replay(self, size: int) -> Forwarded:
        """Replay the graph of `size` on the static inputs. The result is memory of the pool."""
        inputs = self.static.head(size)
        assert inputs.decode is not None
        with self.probe.on_replay(inputs):
            # Inside the probe's block, so that what it watches has the plan of this replay.
            inputs.decode.metadata = self.plans.before_replay(size, inputs)
            self._graphs[size].replay()
        outputs: Forwarded = self._graphs[size].outputs
        return outputs

    def unmap(self, poison: Poison) -> None:
        for graph in self._graphs.values():
            for memory in graph.owned_memory():
                poison.fill_(memory, "graph.pool")


@seam("graph.weak-eager-results", "graph.bridge-outgrown")
def bridge(bridges: Bridges, size: int, part: int, result: Any) -> Any:
    """The tensors where the next segment reads the `result` of an eager part: the result of the
    capture.

    No segment writes them, so they must have an owner as long as the graph is there
    (sgl-project/sglang#37448).
    """
    bridges[size, part] = result
    return result


def reachable_sizes(capture_sizes: tuple[int, ...], max_num_seqs: int) -> list[int]:
    """The graph sizes, rising, that a batch of at most `max_num_seqs` requests can need."""
    rising = sorted(set(capture_sizes))
    needed = [size for size in rising if size < max_num_seqs]
    # The first size that is not below the limit holds the largest batch. No batch needs a larger
    # one.
    return rising[: len(needed) + 1]
