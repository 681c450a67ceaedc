"""Parameters of cases that serve a canary with SGLang. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.api import Params
from mla_harness_adapters.served_params import ServedParams

PAGE_OF = {"flashmla": 64, "cutlass_mla": 128, "default": 64}
"""The page size that a backend needs."""


class SglangParams(ServedParams):
    """A canary served by SGLang in its own processes."""

    canary: Literal["mla", "moe", "dsa", "mtp"] = Field(
        default="mla", description="the checkpoint under fixtures/"
    )
    backend: Literal["triton", "flashmla", "flashinfer", "fa3", "cutlass_mla", "default"] = Field(
        default="triton",
        description=(
            "SGLang's attention backend for decodes; default: its own choice, for canary dsa"
        ),
    )
    prefill_backend: Literal["same", "triton"] = Field(
        default="triton",
        description=(
            "its backend for prefills; FlashInfer compiles kernels for minutes at first use"
        ),
    )
    graph: Literal["none", "full", "default"] = Field(
        default="none",
        description="CUDA graphs of decodes; default: SGLang's own graphs, of prefills too",
    )
    page_size: Literal[1, 16, 64, 128] = Field(
        default=1, description="slots of a page; with 1 no page has a tail"
    )
    num_slots: Annotated[int, Field(ge=256, le=10_000_000)] = Field(
        default=8192, description="max_total_tokens"
    )
    prefix_caching: bool = Field(default=False, description="the radix cache")
    overlap: bool = Field(default=False, description="schedule a step while the one before it runs")
    quantization: Literal["none", "fp8"] = "none"
    speculative: Literal["none", "mtp"] = Field(
        default="none",
        description="mtp: the module of canary mtp drafts three tokens that one step verifies",
    )
    kv_canary: Literal["none", "raise"] = Field(
        default="none",
        description="SGLang's own check of each slot's owner; a mismatch ends the server",
    )
    mixed_chunk: bool = Field(
        default=False, description="a chunk of a prompt and decodes in one batch"
    )
    tensor_parallel: Literal[1, 2] = Field(
        default=1, description="GPUs that the heads of a layer are split over"
    )
    expert_parallel: bool = Field(
        default=False, description="whole experts on each of these GPUs, not parts of each"
    )

    @property
    def num_gpus(self) -> int:
        """See :attr:`Params.num_gpus`. Each rank has one."""
        return self.tensor_parallel

    def problems(self) -> Iterator[str]:
        yield from super().problems()
        if (self.canary == "dsa") != (self.backend == "default"):
            yield "canary dsa needs backend default, and no other canary takes it"
        if (needed := PAGE_OF.get(self.backend)) and self.page_size != needed:
            yield f"backend {self.backend} needs page_size {needed}"
        if self.num_slots % self.page_size:
            yield "num_slots is no multiple of page_size"

    def gives(self) -> frozenset[str]:
        return super().gives() | {"answers"}


class SglangHostParams(Params):
    """A part of SGLang's own Python, run on a CPU on inputs of the harness."""

    part: Literal[
        "radix-cache",
        "free-pages",
        "padded-rows",
        "decode-replay",
        "remote-experts",
        "context-parallel",
        "hicache",
    ] = Field(
        default="radix-cache",
        description="the part of SGLang to run; a module of mla_harness_sglang.host",
    )
    hicache: Literal["kernel", "direct", "states", "windows"] = Field(
        default="kernel",
        description=(
            "how `hicache` moves pages to the host; states: as direct, with layers of recurrent"
            " states too; windows: as direct, with DeepSeek V4's layers of sliding windows"
        ),
    )
    search: Literal["prompts", "lengths"] = Field(
        default="prompts", description="which arithmetic `context-parallel` searches"
    )
    page_size: Literal[1, 16, 64] = Field(
        default=1, description="slots of a page; with 1 no page has a tail"
    )
    backend: Literal["triton", "flashmla"] = Field(
        default="triton", description="the attention backend of `decode-replay`"
    )
    graph: Literal["none", "full"] = Field(
        default="none", description="full: the part fills what a captured graph reads"
    )
    amax: Literal["per_tensor", "per_token"] = Field(
        default="per_tensor",
        description="the scale of SGLang's FP8 quantization in `remote-experts`",
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=300, description="how long one case may take; the first of a process imports SGLang"
    )

    def problems(self) -> Iterator[str]:
        if (
            self.part == "decode-replay"
            and (needed := PAGE_OF.get(self.backend))
            and self.page_size != needed
        ):
            yield f"backend {self.backend} needs page_size {needed}"

    def gives(self) -> frozenset[str]:
        given = {"radix-cache": {"requests"}, "free-pages": {"requests"}, "hicache": {"moves"}}
        return super().gives() | given.get(self.part, set())
