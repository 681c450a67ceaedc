"""How the decisions of an engine are written down: the ids that a stage of a layer chose at each
position.
"""

from __future__ import annotations

import base64
import zlib
from typing import Any, NamedTuple

import torch
from torch import Tensor

UNKNOWN, NONE = -2, -1
"""In a row of ids: the row was not recorded, and no choice."""


class Decider(NamedTuple):
    """What decides: a stage of a layer."""

    layer: int
    stage: str


Ids = dict[Decider, Tensor]
"""The ids [T, k] that each decider chose at each position."""


def packed(ids: Tensor) -> dict[str, Any]:
    """Ids [T, k], each row sorted, as JSON."""
    rows = ids.sort(dim=1).values.to(torch.int16).contiguous()
    data = base64.b64encode(zlib.compress(rows.numpy().tobytes(), 9)).decode()
    return {"shape": list(rows.shape), "data": data}


def unpacked(found: dict[str, dict[str, dict[str, Any]]]) -> Ids:
    """The ids of one request, as a recorder of an engine wrote them: stage -> layer -> `shape` and
    packed `data`.
    """
    ids: Ids = {}
    for stage, layers in found.items():
        for layer, rows in layers.items():
            data = bytearray(zlib.decompress(base64.b64decode(rows["data"])))
            values = torch.frombuffer(data, dtype=torch.int16).view(rows["shape"])
            ids[Decider(int(layer), stage)] = values.long()
    return ids
