"""Records of a cache: what calls that write and read them share."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from harness.core.ops import PAGE_SIZE
from harness.ops.parts.cache_layouts import KV_SCALE
from harness.ops.parts.inputs import OpInputs
from harness.ops.parts.record_formats import RECORDS, encode, store
from harness.ops.parts.record_params import RecordParams

TINY = 2.0**-8
"""What a tiny row is multiplied by: the scale of 16 of its elements is still a normal number of
e4m3.
"""


@dataclass(slots=True)
class RecordInputs(OpInputs):
    """Common to both ops.

    `storage` [N, L, P, bytes] uint8 holds the blocks of L layers; the op sees the last layer.
    """

    storage: Tensor
    record_format: str
    scale: float | None

    @property
    def cache(self) -> Tensor:
        """The cache [N, P, bytes] of the last layer. Its blocks are L blocks apart."""
        return self.storage[:, -1]


def drawn_storage(
    params: RecordParams, num_blocks: int, generator: torch.Generator
) -> tuple[Tensor, float | None]:
    """Blocks [N, L, P, bytes] full of records, and the scale of the whole cache, if the format has
    one.
    """
    form = RECORDS[params.kv]
    scale = KV_SCALE if form.is_scaled else None
    storage = torch.zeros(num_blocks, params.layers, PAGE_SIZE, form.num_bytes, dtype=torch.uint8)
    slots = torch.arange((num_blocks - params.high_blocks) * PAGE_SIZE)
    # Between the null block and the blocks of the call, records are zeros.
    places = slots + (slots >= PAGE_SIZE) * params.high_blocks * PAGE_SIZE
    for layer in range(params.layers):
        store(
            encode(drawn_rows(params, len(slots), generator), params.kv, scale),
            storage[:, layer],
            places,
            params.kv,
        )
    return storage, scale


def drawn_rows(params: RecordParams, num_rows: int, generator: torch.Generator) -> Tensor:
    """Rows [T, W] bfloat16.

    Their sizes differ by powers of two, so that the scale of another row shows.
    """
    sizes = torch.exp2(torch.randint(-2, 3, (num_rows, 1), generator=generator).float())
    if RECORDS[params.kv].quantized and not RECORDS[params.kv].group:
        # With one scale for the whole cache, large rows would saturate and small ones vanish.
        sizes = torch.ones(num_rows, 1)
    return (sizes * torch.randn(num_rows, RECORDS[params.kv].width, generator=generator)).to(
        torch.bfloat16
    )
