"""A graph's plan is stale if the graph read another one, or none at all where its parts do not read
it for it.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from harness.core.engine_params import EngineParams
from harness.engine.batch import Batch, DecodeMetadata, dummy_batch
from harness.judge.probes.addresses import GraphAddresses

SIZE = 2
FRESH = SimpleNamespace(work=torch.arange(4))


def planned() -> Batch:
    """A decode batch of `SIZE` requests with a plan."""
    batch = dummy_batch(SIZE, torch.nn.Embedding(8, 4), num_columns=1)
    assert batch.decode is not None
    batch.decode.metadata = DecodeMetadata(SimpleNamespace(work=torch.zeros(4, dtype=torch.int64)))
    return batch


@pytest.mark.parametrize(
    ("read", "in_parts", "is_stale"),
    [
        (torch.arange(4), False, False),
        (torch.zeros(4, dtype=torch.int64), False, True),
        (torch.zeros(4, dtype=torch.int64), True, True),
        (None, False, True),
        (None, True, False),
    ],
)
def test_a_whole_graph_that_holds_no_plan_read_a_stale_one(
    read: Tensor | None, in_parts: bool, is_stale: bool
) -> None:
    model: Any = SimpleNamespace(kernels=SimpleNamespace(workspace=None))
    addresses = GraphAddresses(model, EngineParams(graph="breakable" if in_parts else "full"))
    graph: Any = SimpleNamespace(tensor_at=lambda address: read)
    addresses.capture(planned(), graph)
    assert addresses.is_stale(SIZE, FRESH) is is_stale
