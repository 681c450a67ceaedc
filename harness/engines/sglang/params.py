"""Parameters of cases that serve a canary with SGLang. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field

from harness.core.params import Count, Params

RECORDED_QUESTIONS = 32
"""The most questions of a run that records the first NaN."""
PAGE_OF = {"flashmla": 64, "cutlass_mla": 128}
"""The page size that a backend needs."""


class SglangParams(Params):
    """A canary served by SGLang in its own processes."""

    canary: Literal["mla", "moe"] = Field(default="mla", description="the checkpoint under fixtures/")
    backend: Literal["triton", "flashmla", "flashinfer", "fa3", "cutlass_mla"] = Field(
        default="triton", description="SGLang's attention backend for decodes"
    )
    prefill_backend: Literal["same", "triton"] = Field(
        default="triton", description="its backend for prefills; FlashInfer compiles kernels for minutes at first use"
    )
    graph: Literal["none", "full", "default"] = Field(
        default="none", description="CUDA graphs of decodes; default: SGLang's own graphs, of prefills too"
    )
    kv: Literal["bf16", "fp8_e4m3"] = "bf16"
    page_size: Literal[1, 16, 64, 128] = Field(default=1, description="slots of a page; with 1 no page has a tail")
    task: str = "gsm_symbolic"
    limit: Count | None = Field(default=128, description="the first questions of the task; all when null")
    epochs: Annotated[int, Field(ge=1, le=100)] = 2
    max_tokens: Count = 112
    max_num_seqs: Count = 64
    num_slots: Annotated[int, Field(ge=256, le=10_000_000)] = Field(default=8192, description="max_total_tokens")
    max_batched_tokens: Annotated[int, Field(ge=64, le=65_536)] = Field(
        default=2048, description="chunked_prefill_size; longer prompts are prefilled in chunks"
    )
    prefix_caching: bool = Field(default=False, description="the radix cache")
    capture_sizes: tuple[Count, ...] = (1, 2, 4, 8, 16, 32, 64)
    compare_eager: bool = Field(default=False, description="also serve without graphs, and compare the answers")
    overlap: bool = Field(default=False, description="schedule a step while the one before it runs")
    quantization: Literal["none", "fp8"] = "none"
    kv_canary: Literal["none", "raise"] = Field(
        default="none", description="SGLang's own check of each slot's owner; a mismatch ends the server"
    )
    least_correct_percent: Annotated[int, Field(ge=0, le=100)] = 97
    process: Literal["fork", "spawn"] = Field(
        default="fork", description="fork: of a process that has imported SGLang once; spawn: new interpreters a case"
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=600, description="how long one serving process may take; a cold one compiles kernels for minutes"
    )

    mixed_chunk: bool = Field(default=False, description="a chunk of a prompt and decodes in one batch")

    @property
    def own_timeout(self) -> float:
        """See :meth:`Params.own_timeout`. The worker waits until each serving process was ended at its limit."""
        return self.timeout_seconds * (2 if self.compare_eager and self.graph != "none" else 1) + 60.0

    def problems(self) -> Iterator[str]:
        """See :meth:`Params.problems`."""
        if (needed := PAGE_OF.get(self.backend)) and self.page_size != needed:
            yield f"backend {self.backend} needs page_size {needed}"
        if self.num_slots % self.page_size:
            yield "num_slots is no multiple of page_size"

    def gives(self) -> frozenset[str]:
        """See :meth:`Params.gives`."""
        return super().gives() | {"answers"}

    def recorded(self) -> Self:
        """See :meth:`Params.recorded`. The questions are few, but enough for batches of prefills and decodes."""
        limit = min(self.limit or RECORDED_QUESTIONS, RECORDED_QUESTIONS)
        return self.model_copy(update={"epochs": 1, "compare_eager": False, "limit": limit})


class SglangHostParams(Params):
    """A part of SGLang's own Python, run on a CPU on inputs of the harness."""

    part: Literal["radix-cache", "free-pages", "padded-rows", "decode-replay"] = Field(
        default="radix-cache", description="the part of SGLang to run; a module of harness/engines/sglang/host"
    )
    page_size: Literal[1, 16, 64] = Field(default=1, description="slots of a page; with 1 no page has a tail")
    backend: Literal["triton", "flashmla"] = Field(
        default="triton", description="the attention backend of `decode-replay`"
    )
    graph: Literal["none", "full"] = Field(
        default="none", description="full: the part fills what a captured graph reads"
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=300, description="how long one case may take; the first of a process imports SGLang"
    )

    def problems(self) -> Iterator[str]:
        """See :meth:`Params.problems`."""
        if self.part == "decode-replay" and (needed := PAGE_OF.get(self.backend)) and self.page_size != needed:
            yield f"backend {self.backend} needs page_size {needed}"

    def gives(self) -> frozenset[str]:
        """See :meth:`Params.gives`."""
        return super().gives() | ({"requests"} if self.part in ("radix-cache", "free-pages") else set())
