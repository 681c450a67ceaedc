"""The parameters that every engine which serves a canary has. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field

from harness.api import FIXTURES, Params

Count = Annotated[int, Field(ge=1, le=4096)]
LONGEST = {"dsa": 8192}
"""Canary -> the most tokens of a request, if they are more than 1,024."""
TASKS = {"mtp": ("drafts",), "dsa": ("recall", "recall_long")}
"""Canary -> the tasks that it has learned, if it knows no other."""
RECORDED_QUESTIONS = 32
"""The most questions of a run that records the first NaN."""


class ServedParams(Params):
    """A canary that an engine serves in processes of its own, while it answers the questions of a
    task.
    """

    CACHE_TYPE: ClassVar[str] = "kv"

    kv: Literal["bf16", "fp8_e4m3"] = "bf16"
    task: str = "gsm_symbolic"
    limit: Count | None = Field(
        default=128, description="the first questions of the task; all when null"
    )
    epochs: Annotated[int, Field(ge=1, le=100)] = 2
    max_tokens: Count = 112
    max_num_seqs: Count = 64
    max_batched_tokens: Annotated[int, Field(ge=64, le=65_536)] = Field(
        default=2048,
        description="the most tokens of a step; longer prompts are prefilled in chunks",
    )
    capture_sizes: tuple[Count, ...] = (1, 2, 4, 8, 16, 32, 64)
    compare_eager: bool = Field(
        default=False, description="also serve without graphs, and compare the answers"
    )
    least_correct_percent: Annotated[int, Field(ge=0, le=100)] = 97
    process: Literal["fork", "spawn"] = Field(
        default="fork",
        description=(
            "fork: of a process that imported the engine once, where it can be forked; spawn: new"
            " interpreters"
        ),
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=600,
        description=(
            "how long one serving process may take; a cold one compiles kernels for minutes"
        ),
    )

    canary: str
    speculative: str

    @property
    def checkpoint(self) -> Path:
        return FIXTURES / f"canary-{self.canary}"

    @property
    def has_module(self) -> bool:
        """Whether a layer drafts that knows the answers by heart: the checkpoint's own module, or
        canary-eagle's.
        """
        return self.speculative in ("mtp", "eagle")

    def problems(self) -> Iterator[str]:
        if self.has_module and self.canary != "mtp":
            yield (
                f"speculative {self.speculative} needs canary mtp: no drafter knows the answers of"
                f" {self.canary}"
            )
        learned = TASKS.get(self.canary, (self.task,))
        if self.task not in learned:
            yield f"canary {self.canary} has learned {' and '.join(learned)}, not {self.task}"

    def gives(self) -> frozenset[str]:
        return super().gives() | ({"module"} if self.has_module else set())

    @property
    def own_timeout(self) -> float:
        """See :meth:`Params.own_timeout`.

        The worker waits until each serving process was ended at its limit.
        """
        return self.timeout_seconds * (2 if self.compare_eager and self.has_graph else 1) + 60.0

    def recorded(self) -> Self:
        """See :meth:`Params.recorded`.

        The questions are few, but enough for batches of prefills and decodes.
        """
        limit = min(self.limit or RECORDED_QUESTIONS, RECORDED_QUESTIONS)
        return self.model_copy(update={"epochs": 1, "compare_eager": False, "limit": limit})
