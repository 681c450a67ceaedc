"""The parameters of cases that serve requests: the reference engine, and accuracy measured on
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from harness.core.call_words import rank_problem
from harness.core.ops import PAGE_SIZE
from harness.core.params import Count
from harness.core.serving_params import (
    SPARSE_STAGES,
    ChangeParams,
    ModelSizes,
    ServingParams,
    WorkloadParams,
)
from harness.core.shapes import COUNTS, Shapes


class EngineParams(ServingParams, ModelSizes, WorkloadParams, ChangeParams):
    """A serving run of the reference engine on a small model with random weights."""

    LIMITS: ClassVar[dict[str, str]] = {"num_experts_per_tok": "num_experts"}

    def problems(self) -> Iterator[str]:
        if not self.requests or not self.layers:
            yield "requests and layers hold at least one entry each"
            return
        if self.has_graph and not self.capture_sizes:
            yield "capture_sizes is empty; a graph has a size"
        if self.qk_rope_head_dim % 2:
            yield "qk_rope_head_dim is odd; rotary embedding turns pairs"
        if max(len(self.arrivals), len(self.chains)) > len(self.requests):
            yield "arrivals and chains have at most one entry for each request"
        if any(request >= len(self.requests) for request, _ in self.aborts):
            yield "aborts names a request that is not there"
        # Block 0 is the null block, and the last one is the trap, which has no owner.
        if (need := self.blocks_needed) > self.num_blocks - 2:
            yield (
                f"num_blocks {self.num_blocks} leaves {self.num_blocks - 2} blocks, a request needs"
                f" {need}"
            )
        yield from self._change_problems()
        yield from self._drafter_problems()
        yield from conflicts(self, set(self.layers), self.num_experts)
        yield from rank_problem(self.kv_lora_rank, self.qk_rope_head_dim)

    def _starts_after_changes(self) -> bool:
        """Whether a request that is never aborted arrives after all changes, so that a cold engine
        can answer it as well.
        """
        aborted = {request for request, _ in self.aborts}
        arrivals = [*self.arrivals, *[0] * (len(self.requests) - len(self.arrivals))]
        last = max((at for one, at in enumerate(arrivals) if one not in aborted), default=-1)
        return bool(self.changes) and last >= max(step for _, step in self.changes)

    def _change_problems(self) -> Iterator[str]:
        kinds = {change for change, _ in self.changes}
        if kinds and (self.flush or self.drafter):
            yield (
                "changes with flush or drafter: the answers after a flush are not of the first"
                " model, drafts neither"
            )
        if "move_experts" in kinds and not self.num_experts:
            yield "changes moves experts of a model with num_experts 0"
        if "switch_adapter" in kinds and 1 not in self.adapters:
            yield "changes switches the adapter in slot 1, which adapters gives to no request"
        if self.adapters and (self.num_experts or set(self.layers) != {"mla"}):
            yield "adapters are for models of dense mla layers"
        if len(self.adapters) > len(self.requests):
            yield "adapters has at most one entry for each request"

    @property
    def has_module(self) -> bool:
        """Whether a module with a layer of its own drafts."""
        return self.speculative != "ngram"

    def _drafter_problems(self) -> Iterator[str]:
        if not self.has_module:
            return
        if self.speculative_tokens != 1:
            yield f"speculative {self.speculative} guesses one token; set speculative_tokens to 1"
        if self.drafter or self.changes or self.adapters or self.flush:
            yield "speculative with drafter, changes, adapters or flush: the module is of one model"
        if self.num_experts or "sparse" in self.layers:
            yield (
                "speculative with experts or sparse layers: where scores are tied, rounding decides"
                " what it learns"
            )
        if any(chain[0].isdigit() for chain in self.chains):
            yield "speculative learns answers by heart, and chains go on with an answer"
        if sum(count for _, count in self.requests) > self.hidden_size // 2:
            yield (
                "speculative learns at most half as many tokens by heart as hidden_size; generate"
                " fewer"
            )

    @classmethod
    def settled(cls, values: dict[str, Any]) -> dict[str, Any]:
        count = len(values["requests"])
        aborts = [entry for entry in values["aborts"] if entry[0] < count]
        values = (
            values
            | {name: values[name][:count] for name in ("arrivals", "chains")}
            | {"aborts": aborts}
        )
        # A model without experts keeps its choice of them.
        return super().settled(values) if values["num_experts"] else values

    @property
    def must_happen(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys((*self.happens, *(change for change, _ in self.changes))))

    def varied(self) -> Self:
        """Without `steps`: what each step decides holds for the tokens of the written case."""
        return self.but(steps=())

    page_size: ClassVar[int] = PAGE_SIZE

    @property
    def query_len(self) -> int:
        """Query tokens of a decoding request in a step: its last token and its drafts."""
        return 1 + self.speculative_tokens

    @property
    def qk_head_dim(self) -> int:
        """The width of a query head outside the absorbed form."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def resized(self, size: str, value: int, changes: dict[str, Any]) -> dict[str, Any]:
        if size != "qk_head_dim":
            return {size: value}
        # A head is a part without rotary embedding and a part with it. The second is a size of its
        # own, so the first one gives way.
        return {"qk_nope_head_dim": value - changes.get("qk_rope_head_dim", self.qk_rope_head_dim)}

    @property
    def longest(self) -> int:
        """Cached tokens of the longest request at its end, drafts included.

        The last token is never cached.
        """
        return max(prompt + count - 1 for prompt, count in self.requests) + self.speculative_tokens

    @property
    def blocks_needed(self) -> int:
        """Blocks of the longest request: its pages in each list of pages, a state, and the block of
        padding.
        """
        lists = 1 + ("window" in self.layers)
        return (
            lists * -(-self.longest // PAGE_SIZE)
            + ("kda" in self.layers)
            + (self.pad_tokens == "trash")
        )

    def gives(self) -> frozenset[str]:
        found = {
            "requests": True,
            "warm": (self.prefix_caching and self.epochs > 1) or self._starts_after_changes(),
            "flush": self.flush,
            "experts": self.num_experts > 0,
            "module": self.has_module,
            "mixed": len(self._stored_types()) > 1,
        }
        return super().gives() | {name for name, is_there in found.items() if is_there}

    def idle_kernels(self) -> frozenset[str]:
        # A request's first token comes from its prefill.
        has_decodes = (
            any(count > 1 for _, count in self.requests) or self.dummy_steps or self.has_graph
        )
        has_context = (
            self.prefix_caching
            or sum(prompt for prompt, _ in self.requests) > self.max_batched_tokens
        )
        decodes = has_decodes and not {"mla", "window"}.isdisjoint(self.layers)
        uses = {
            **self._uses_of_activations(),
            **dict.fromkeys(SPARSE_STAGES, "sparse" in self.layers),
            "route_kernel": self.num_experts > 0,
            "decode_kernel": decodes,
            # A graph has its plan made before a replay, whatever its layers are.
            "plan_kernel": decodes or self.has_graph,
            "write_kernel": set(self.layers) != {"kda"},
            "context_kernel": has_context and "mla" in self.layers,
            "merge_kernel": has_context and "mla" in self.layers,
        }
        return frozenset(field for field, is_used in uses.items() if not is_used)

    def _stored_types(self) -> set[str]:
        """The kinds of data that layers store in the blocks of the pool: types of latents, and
        states.
        """
        stored = {
            "mla": self.kv,
            "sparse": self.kv,
            "window": self.window_kv or self.kv,
            "kda": "state",
        }
        return {stored[kind] for kind in self.layers}


class EpochsParams(ServingParams):
    """Common to all accuracy measurements of a scenario: the canary, how it is served, how it is
    asked.
    """

    OPEN_SIZES: ClassVar[frozenset[str]] = frozenset(Shapes.model_fields) - {"name", *COUNTS}
    """The model that answers has the sizes."""

    canary: Literal["mla", "hybrid"] = Field(
        default="mla", description="the checkpoint under fixtures/"
    )
    epochs: Annotated[int, Field(ge=1, le=100)] = Field(
        default=2, description="how often the questions are asked"
    )
    max_tokens: Count = Field(
        default=112, description="tokens of an answer at most; longer ones are cut"
    )
    timeout_seconds: Annotated[int, Field(ge=1, le=86_400)] = Field(
        default=300,
        description="how long one such case may take, whatever --timeout says of others",
    )
    max_batched_tokens: Count = 512
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] = 64


class AccuracyParams(EpochsParams):
    """Accuracy by epoch: a canary answers one task's questions several times on one running
    engine.
    """

    task: str
    limit: Count | None = Field(
        default=None, description="the first questions of the task; all when left out"
    )

    def gives(self) -> frozenset[str]:
        return super().gives() | {"answers"}

    def idle_kernels(self) -> frozenset[str]:
        # No canary of the reference engine has sparse layers.
        uses = self._uses_of_activations() | dict.fromkeys(SPARSE_STAGES, False)
        return frozenset(field for field, is_used in uses.items() if not is_used)


def conflicts(params: EngineParams, layers: Set[str], num_experts: int) -> Iterator[str]:
    """Yield a sentence for each conflict between features of the engine in a model with these kinds
    of layers.
    """
    if params.prefix_caching and "window" in layers:
        yield (
            "prefix_caching shares pages of full and sparse layers, and states; a window of another"
            " request it cannot"
        )
    if params.speculative_tokens and "kda" in layers:
        yield (
            "speculative_tokens with kda layers: a state cannot be taken back when a draft is wrong"
        )
    if (params.graph, params.capture) == ("breakable", "lazy"):
        yield (
            "capture lazy with graph breakable: a plan is made in an eager part, which no capture"
            " records"
        )
    if num_experts % params.expert_ranks:
        yield (
            f"expert_ranks {params.expert_ranks} with {num_experts} experts: each rank holds an"
            " equal share"
        )
    if params.amax_rows == "batch":
        if "sparse" in layers:
            yield (
                "amax_rows batch needs padded rows that are finite, and the decode of sparse layers"
                " writes none"
            )
        if params.dp_rank_tokens:
            yield (
                "amax_rows batch needs padded rows that are finite, and no kernel writes rows up to"
                " dp_rank_tokens"
            )
    if params.max_batched_tokens <= params.speculative_tokens:
        yield (
            f"max_batched_tokens {params.max_batched_tokens} with {params.speculative_tokens}"
            f" drafts: a request verifies {1 + params.speculative_tokens} tokens in one step"
        )
