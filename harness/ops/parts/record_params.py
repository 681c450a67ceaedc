"""Parameters that `write_records` and `read_records` share. No torch here."""

from __future__ import annotations

from typing import Annotated, ClassVar

from pydantic import Field

from harness.core.call_words import HighBlocks, RecordFormat
from harness.core.params import KernelParams


class RecordParams(KernelParams):
    """Common to `write_records` and `read_records`."""

    CACHE_TYPE: ClassVar[str] = "kv"

    kv: RecordFormat = "bf16"
    layers: Annotated[int, Field(ge=1, le=8)] = Field(
        default=1,
        description=(
            "layers whose blocks lie side by side in one allocation; the cache is the last's part"
        ),
    )
    high_blocks: HighBlocks = 0
