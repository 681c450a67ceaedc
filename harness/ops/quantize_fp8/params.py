"""The parameters of a call of `quantize_fp8`. No torch here."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.core.call_words import ROW_VALUES, RowValues
from harness.core.params import KernelParams, Length, Tokens


class QuantizeFp8Params(KernelParams):
    """One call of `quantize_fp8` on `num_tokens` rows; the first `num_live` of them are live."""

    LIMITS: ClassVar[dict[str, str]] = {"num_live": "num_tokens"}

    num_tokens: Tokens = 8
    num_live: Annotated[int, Field(ge=1, le=100_000)] = 5
    zero_rows: Length = Field(default=0, description="first rows that hold zeros")
    width: Tokens = 256
    values: tuple[RowValues, ...] = ROW_VALUES
    peaks: tuple[Literal["first", "inner", "last"], ...] = Field(
        default=(), description="where the largest element of each row is; repeated for more rows"
    )


PARAMS = QuantizeFp8Params
