"""The parameters of a call of `read_records`. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

from pydantic import Field

from harness.core.call_words import PAGE_ORDER, PageOrder
from harness.core.params import Length
from harness.ops.parts.record_params import RecordParams


class ReadRecordsParams(RecordParams):
    """One call of `read_records` for requests of these lengths."""

    seq_lens: tuple[Length, ...] = (5, 64, 65)
    table_pad: Annotated[int, Field(ge=0, le=64)] = 1
    page_order: tuple[PageOrder, ...] = PAGE_ORDER

    def problems(self) -> Iterator[str]:
        if not any(self.seq_lens):
            yield "seq_lens has no live request; give one a length"


PARAMS = ReadRecordsParams
