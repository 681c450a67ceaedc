"""What the calls of all ops have in common. No torch here."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field

from harness.core.ops import PAGE_SIZE
from harness.core.params import Params

FlatLayout = Literal["contiguous", "block_major", "padded_pages", "large"]
"""How the pages of a cache lie in memory; see :mod:`harness.kernels.ops.cache_layouts`. Only a block table shows the
blocks of a manager, a flat slot does not."""


class KernelParams(Params):
    """Common to all ops: the kernel under test."""

    kernel: str = "torch"
    fence: Literal["none", "before", "after"] = Field(
        default="none", description="inputs begin (before) or end (after) at memory without access"
    )
    predecessor: Literal["none", "slow"] = Field(
        default="none", description="slow: the kernel in front starts the next one at once, and writes its inputs late"
    )
    streams: Literal["none", "delayed"] = Field(
        default="none",
        description="delayed: another stream writes the inputs late; host memory changes after a call",
    )
    corrupt: str = Field(
        default="", description="what is wrong with an argument, or `all` in turn; see docs/reject-or-correct.md"
    )
    page_size: ClassVar[int] = PAGE_SIZE

    @property
    def num_launches(self) -> int:
        """Launches on the same inputs."""
        return 1

    @property
    def dtype(self) -> str:
        """The type of queries, keys and latents: float32 beside a float32 cache, else bfloat16."""
        return "fp32" if self.cache_type == "fp32" else "bf16"
