"""The parameters of cases in which a cache is moved: to a host tier and back, or from one engine to
another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field

from harness.core.params import Count, Length, Params

Ranks = Literal[1, 2, 4]


class MoveParams(Params):
    """Requests whose cache is moved while they run. No model runs: each byte holds its owner."""

    move: Literal["host", "handoff"] = Field(
        default="host",
        description=(
            "host: preempted requests and finished prefixes go to a host tier and come back; "
            "handoff: a prefill engine hands its pages to a decode engine"
        ),
    )
    connector: str = Field(
        default="own", description="who stores and loads for the host tier; plug-ins add theirs"
    )
    groups: tuple[Literal["latent", "heads", "index", "window", "state"], ...] = Field(
        default=("latent",),
        description=(
            "what a layer stores: MLA latents, K and V by head, index keys, latents of a window, a"
            " state. Heads and states are sharded over the ranks, the others are alike on each"
        ),
    )
    tensor_parallel: Ranks = Field(
        default=1, description="ranks of the engine, or of the prefill engine"
    )
    decode_ranks: Ranks | None = Field(
        default=None, description="ranks of the decode engine; as many when left out"
    )
    num_layers: Annotated[int, Field(ge=1, le=8)] = 2
    block_size: Literal[16, 64, 768] = 16
    kernel_block: Literal[16, 64] = Field(
        default=16, description="tokens of a kernel's block, a part of a block"
    )
    unit: Literal["block", "token"] = Field(
        default="block",
        description="what is moved of a request's last block: the whole block, or its tokens",
    )
    window: Count = 24
    num_blocks: Annotated[int, Field(ge=4, le=1000)] = 9
    chunk: Count = Field(default=32, description="the most tokens of a prompt in one step")
    requests: tuple[tuple[Count, Count], ...] = Field(
        default=((20, 20), (17, 24), (30, 12), (24, 14)),
        description="prompt length and tokens to generate",
    )
    shared_prefix: Length = Field(
        default=0, description="tokens of the first request that the last one begins with"
    )
    failing: tuple[Length, ...] = Field(
        default=(), description="transfers, by number, that fail half-way"
    )
    aborted: tuple[Length, ...] = Field(
        default=(), description="requests that are aborted while their pages move"
    )
    schedules: Count = Field(
        default=4, description="seeded orders of the operations that are tried"
    )

    def problems(self) -> Iterator[str]:
        if self.block_size % self.kernel_block:
            yield f"block_size {self.block_size} is no multiple of kernel_block {self.kernel_block}"
        if self.shared_prefix and set(self.groups) & {"window", "state"}:
            yield "shared_prefix with a window or a state, which no other request can begin with"
        if self.shared_prefix and self.shared_prefix >= min(
            self.requests[0][0], self.requests[-1][0]
        ):
            yield "shared_prefix is as long as a prompt"
        if self.move == "host" and (self.failing or self.aborted or self.decode_ranks):
            yield "failing, aborted and decode_ranks are of the transport; use move: handoff"
        most = max(self.blocks_of(prompt + count) for prompt, count in self.requests)
        if most > self.num_blocks - 2:
            yield (
                f"num_blocks {self.num_blocks} leaves {self.num_blocks - 2} blocks, a request needs"
                f" {most}"
            )

    def blocks_of(self, num_tokens: int) -> int:
        lists = bool(set(self.groups) - {"window", "state"}) + ("window" in self.groups)
        return lists * -(-num_tokens // self.block_size) + ("state" in self.groups)

    def gives(self) -> frozenset[str]:
        return super().gives() | {"moves"}
