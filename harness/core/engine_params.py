"""The parameters of cases that serve requests: the reference engine, and accuracy measured on
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import Field

from harness.core.call_words import rank_problem
from harness.core.ops import PAGE_SIZE
from harness.core.params import Count, KvType, Length, Params
from harness.core.shapes import COUNTS, Shapes

Ranks = Annotated[int, Field(ge=1, le=8)]
SPARSE_STAGES = ("sparse_kernel", "logits_kernel", "topk_kernel", "map_kernel")
"""The kernels of a sparse layer alone."""
LayerKind = Literal["mla", "kda", "window", "sparse"]
Change = Literal["reload", "reload_new", "sleep", "move_experts", "switch_adapter"]
"""A state change of a running engine.

`reload`: other weights are written into the tensors of the old ones. `reload_new`: they come in new
tensors, and graphs are captured again. `sleep`: weights, KV pool and graph memory are unmapped and
mapped again. `move_experts`: experts change their places on the ranks. `switch_adapter`: another
adapter gets slot 1.
"""
Event = Literal[
    "preempt.prefill",
    "preempt.itself",
    "preempt.decode",
    "preempt.verify",
    "preempt.page_end",
    "preempt.twice",
    "preempt.evicted",
    "hit",
    "hit.free",
    "hit.evicted_next",
    "concurrent",
    "evict",
    "collision",
    "other_past",
    "abort.waiting",
    "abort.prefill",
    "abort.decode",
    "abort.verify",
    "full",
    "drafts.none",
    "drafts.some",
    "drafts.all",
]
"""What may happen to requests and pages.

`preempt`: a request loses its blocks between two chunks, for its own next chunk, while it decodes,
while it verifies drafts, when its pages are full, again before it gave a token, or after pages
behind its window were given back. `hit`: a prompt starts with a cached page, which is free, or
which the same step would have evicted. `concurrent`: two running requests compute the same page.
`evict`: a cached page gets a new owner. `collision`: another prefix has the hash. `other_past`: a
page with the same tokens is cached behind other ones. `abort`: a request is dropped in this phase.
`full`: requests wait because as many run as may. `drafts`: a step takes none, some and not the
last, or all.
"""


class KernelParams(Params):
    """The kernel of each op, by name."""

    decode_kernel: str = "tiled"
    plan_kernel: str = "tiled"
    context_kernel: str = "torch"
    merge_kernel: str = "torch"
    sparse_kernel: str = "gather"
    logits_kernel: str = "torch"
    topk_kernel: str = "torch"
    map_kernel: str = "torch"
    write_kernel: str = "torch"
    quantize_kernel: str = "torch"
    route_kernel: str = "torch"
    blocks_kernel: str = "torch"
    quantize: Literal["none", "fp8_per_tensor", "fp8_per_token", "mxfp8"] = Field(
        default="none",
        description="quantization of the activations that enter the output projection and the MLP",
    )


class CacheParams(Params):
    """The pool of blocks: what it stores, how many there are, and which requests may share them."""

    kv: KvType = "bf16"
    num_blocks: Annotated[int, Field(ge=4, le=1_000_000)] = 24
    free_list: Literal["fifo", "lifo"] = "fifo"
    prefix_caching: bool = Field(
        default=False, description="prompts share the full pages of a prefix seen before"
    )


class BatchParams(Params):
    """What a step takes at most, and how its rows are padded."""

    max_batched_tokens: Count = 96
    max_num_seqs: Count = 8
    context_chunk: Count = Field(
        default=128, description="context tokens gathered at once for prefill"
    )
    zero_fill_output: bool = Field(
        default=False, description="decode output is zeroed first, as in vllm-project/vllm#37442"
    )
    dp_rank_tokens: Length = Field(
        default=0, description="activations are padded to the length of the longest rank"
    )
    pad_tokens: Literal["skip", "trash"] = Field(
        default="skip",
        description="padded tokens are not stored, or stored in a block of their own",
    )
    pad_keys: Literal[0, 1] = Field(
        default=0, description="keys of padded requests; 1 is a slot of the null block"
    )
    amax_rows: Literal["live", "batch"] = Field(
        default="live",
        description=(
            "rows that a scale of activations covers; batch: padded ones too, all kept finite"
        ),
    )
    dummy_steps: bool = Field(
        default=False, description="a dummy batch between live steps, as on an idle DP rank"
    )


class GraphParams(Params):
    """The graphs that replay decodes."""

    graph: Literal["none", "full", "breakable"] = "none"
    capture: Literal["persistent", "lazy"] = Field(
        default="persistent",
        description="persistent: filled before each replay; lazy: planned inside the capture",
    )
    capture_sizes: tuple[Count, ...] = (1, 2, 4, 8)
    capture_order: Literal["falling", "rising"] = Field(
        default="falling", description="the order of the sizes"
    )
    drafter: bool = Field(
        default=False, description="a second graph in the same pool runs before logits are consumed"
    )


class RankParams(Params):
    """The ranks that share a layer. All of them run in one process."""

    context_ranks: Ranks = Field(
        default=1, description="context-parallel ranks; each has every n-th token of a chunk"
    )
    expert_ranks: Ranks = Field(
        default=1, description="expert-parallel ranks; each has an equal share of the experts"
    )


class ModelSizes(Params):
    """A small model with random weights."""

    layers: tuple[LayerKind, ...] = Field(
        default=("mla", "mla"),
        description=(
            "mla: full attention; window: MLA over the last tokens; sparse: MLA over the tokens"
            " that an indexer chose; kda: linear attention"
        ),
    )
    hidden_size: Count = 64
    num_heads: Count = 4
    kv_lora_rank: Count = 32
    qk_rope_head_dim: Count = 16
    qk_nope_head_dim: Count = 16
    v_head_dim: Count = 16
    vocab_size: Count = 128
    num_experts: Annotated[int, Field(ge=0, le=256)] = 0
    num_experts_per_tok: Count = 2
    window: Count = Field(
        default=48, description="tokens that a query of a `window` layer sees, its own included"
    )
    window_kv: KvType | None = Field(
        default=None, description="cache type of `window` layers; `kv` when left out"
    )
    index_topk: Count = Field(
        default=16, description="tokens that a query of a `sparse` layer sees"
    )


class WorkloadParams(Params):
    """The requests: their lengths, when they come and go, and what must happen to them."""

    requests: tuple[tuple[Count, Count], ...] = Field(
        default=((5, 12), (70, 10), (17, 14), (130, 8)),
        description="prompt length and tokens to generate, in order of arrival",
    )
    shared_prefix: Length = Field(default=0, description="tokens that all prompts have in common")
    epochs: Annotated[int, Field(ge=1, le=100)] = 1
    speculative_tokens: Annotated[int, Field(ge=0, le=7)] = Field(
        default=0,
        description="drafts that each decoding request verifies in a step, as further query tokens",
    )
    speculative: Literal["ngram", "mtp", "eagle"] = Field(
        default="ngram",
        description=(
            "where drafts come from: equal tokens before, or a module with a layer of its own that"
            " knows the answers by heart"
        ),
    )
    flush: bool = Field(
        default=False, description="at the end all caches are flushed and all requests run again"
    )
    cancelled: tuple[Length, ...] = Field(
        default=(),
        description=(
            "requests, counted by arrival over all epochs, that are cancelled between the"
            " scheduling and the run of their first step"
        ),
    )
    arrivals: tuple[Length, ...] = Field(
        default=(),
        description="the step of its epoch before which each request arrives; 0 without an entry",
    )
    aborts: tuple[tuple[Length, Length], ...] = Field(
        default=(),
        description=(
            "request and step: the request is aborted before that step of each epoch, if it lives"
        ),
    )
    chains: tuple[Annotated[str, Field(pattern=r"^([a-h]+|[0-9]+\+|_)$")], ...] = Field(
        default=(),
        description=(
            "what each prompt begins with, a letter for the tokens of a page: `ab` and `cb` share a"
            " page's tokens and not its past; `0+` goes on with the prompt and the answer of"
            " request 0; `_` is nothing"
        ),
    )
    num_hashes: Count | None = Field(
        default=None, description="different hashes of prefixes; a small number makes collisions"
    )
    happens: tuple[Event, ...] = Field(
        default=(),
        description="events that must happen in the engine, or the case is skipped and is no pass",
    )
    steps: tuple[str, ...] = Field(
        default=(),
        description=(
            "what each step decides, for `policy`: `0+64` a prompt's tokens, `1*3` a decode's, then"
            " its blocks; only the case as it is written, with seed 0, is held to it"
        ),
    )


class ChangeParams(Params):
    """Changes of the state of a running engine."""

    changes: tuple[tuple[Change, Length], ...] = Field(
        default=(),
        description="state changes, each before this step of the last epoch; at 0 no request runs",
    )
    adapters: tuple[Annotated[int, Field(ge=0, le=2)], ...] = Field(
        default=(),
        description=(
            "the slot of each request's adapter on kv_b_proj; 0, also without an entry, is none"
        ),
    )


class ServingParams(KernelParams, CacheParams, BatchParams, GraphParams, RankParams):
    """How the reference engine serves any model: its cache, kernels, graphs and limits."""

    OPEN_SIZES: ClassVar[frozenset[str]] = frozenset({"layout", "dtype", "topk"})
    READS_LSE: ClassVar[frozenset[str]] = frozenset({"context_kernel", "merge_kernel"})

    def _uses_of_activations(self) -> dict[str, bool]:
        """Whether each kernel that rounds activations is used."""
        return {
            "quantize_kernel": self.quantize == "fp8_per_tensor",
            "blocks_kernel": self.quantize == "mxfp8",
        }

    CACHE_TYPE: ClassVar[str] = "kv"


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
        """Whether a request arrives after all changes, so that a cold engine can answer it as
        well.
        """
        last = max((0, *self.arrivals))
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
        runs = any(step and change in ("reload", "reload_new") for change, step in self.changes)
        if runs and (self.num_experts or "sparse" in self.layers):
            yield (
                "changes reloads while requests run: the choices of experts and sparse layers"
                " before it are not kept"
            )
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
        if self.drafter or self.changes or self.adapters or self.flush or self.prefix_caching:
            yield (
                "speculative with drafter, changes, adapters, flush or prefix_caching: the module"
                " is of one model"
            )
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
        return self.but(steps=())

    page_size: ClassVar[int] = PAGE_SIZE

    @property
    def query_len(self) -> int:
        return 1 + self.speculative_tokens

    @property
    def qk_head_dim(self) -> int:
        """The width of a query head outside the absorbed form."""
        return self.qk_nope_head_dim + self.qk_rope_head_dim

    def resized(self, size: str, value: int, changes: dict[str, Any]) -> dict[str, Any]:
        if size != "qk_head_dim":
            return {size: value}
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
