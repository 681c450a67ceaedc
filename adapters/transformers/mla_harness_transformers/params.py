"""The parameters of a case of transformers. No torch here."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from harness.api import Params

Count = Annotated[int, Field(ge=1, le=4096)]


class TransformersParams(Params):
    """A canary answered by transformers on a CPU."""

    canary: Literal["mla", "moe"] = Field(
        default="mla", description="the checkpoint under fixtures/, of DeepSeek V2"
    )
    batching: Literal["none", "continuous"] = Field(
        default="continuous",
        description="none: `generate`, one prompt at a time; continuous: as `transformers serve`",
    )
    task: str = "gsm_symbolic"
    limit: Count | None = Field(
        default=8, description="the first questions of the task; all when null"
    )
    epochs: Annotated[int, Field(ge=1, le=100)] = 1
    max_tokens: Count = 112
    least_correct_percent: Annotated[int, Field(ge=0, le=100)] = 97
    num_blocks: Count = Field(
        default=64, description="blocks of the cache; the default takes most of the memory"
    )

    def gives(self) -> frozenset[str]:
        """See :meth:`Params.gives`."""
        return frozenset({"answers"})
