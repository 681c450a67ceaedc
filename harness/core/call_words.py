"""Words and limits of parameters that calls of several ops share. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.core.ops import latent_rank

PageOrder = Literal["random", "rising", "falling", "repeated", "prefix", "same"]
"""How the pages of a request lie, and which it shares; see
:func:`harness.ops.parts.decode_conditions.arranged`.
"""


SparseOrder = Literal["random", "rising", "falling", "some", "same", "holes"]


DecodeValues = Literal["plain", "zero", "ties", "one_key", "large", "low", "deep"]
"""The scores of a request's keys: all 0, equal largest ones, one key that outweighs the others, a
score of 1.5e4, all near -30, all near -200, where exp underflows.
"""


RowValues = Literal["plain", "zero", "tiny", "large", "faint", "subnormal"]
"""The size of a row's elements: as drawn, all 0, a thousandth, 16,384 times as large, near 1e-10,
near 1e-40.
"""


SlotOrder = Literal["random", "rising", "falling", "from_first", "from_last"]
"""The slots of the tokens of a call: scattered, one behind the other, or so from the first or last
slot of a page.
"""


Padded = Literal["end", "between"]


PAGE_ORDER = Field(
    default=(), description="order of each request's pages, or which it shares; repeated for more"
)


ROW_VALUES = Field(default=(), description="size of each row; repeated for more rows")


PAGES_OF_MANAGER_BLOCK = 4
"""Pages of one block of the manager in the layout `manager_blocks`."""


HighBlocks = Annotated[
    int, Field(ge=0, le=2**20, description="unused blocks below the blocks of the call")
]


def rank_problem(kv_lora_rank: int, rope_dim: int) -> Iterator[str]:
    """Kernels know only D = R + E, so R must follow from D."""
    if latent_rank(kv_lora_rank + rope_dim) != kv_lora_rank:
        yield (
            f"kv_lora_rank {kv_lora_rank} is not the largest power of two below kv_lora_rank +"
            f" qk_rope_head_dim ({kv_lora_rank + rope_dim})"
        )


RecordFormat = Literal[
    "bf16",
    "fp8_e4m3",
    "fp8_ds_mla",
    "indexer_planar",
    "indexer_interleaved",
    "indexer_shuffled",
    "nvfp4_linear",
    "nvfp4_swizzled",
]
"""How a cache stores a token, as in :mod:`harness.ops.parts.record_formats`, which needs torch.
"""


PageStride = Annotated[
    int, Field(ge=0, le=2**32, description="elements from page to page; 0: as the layout has them")
]
