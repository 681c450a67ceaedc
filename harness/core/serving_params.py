"""The parameters of serving, by what they choose: kernels, cache, batches, graphs, ranks, sizes,
requests, changes.

`harness.core.engine_params` joins them to the parameters of a case.
"""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from harness.core.params import Count, KvType, Length, Params

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
    "hole",
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
page with the same tokens is cached behind other ones. `hole`: a page of a prompt is cached and an
earlier one is not. `abort`: a request is dropped in this phase.
`full`: requests wait because as many run as may. `drafts`: a step takes none, some and not the
last, or all.
"""


class KernelChoices(Params):
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
    # Which block is handed out next decides whose old bits a new request finds in it.
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
    # A mend that upstream made: it hides unwritten rows, and costs a fill each step.
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
    # Engines differ here: some give a padded request no key, others a slot of block 0 that padding
    # writes.
    pad_keys: Literal[0, 1] = Field(
        default=0, description="keys of padded requests; 1 is a slot of the null block"
    )
    amax_rows: Literal["live", "batch"] = Field(
        default="live",
        description=(
            "rows that a scale of activations covers; batch: padded ones too, all kept finite"
        ),
    )
    # An idle rank runs them to meet the others in a collective, with whatever its buffers hold.
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
    # The largest graph is captured first as a rule, so that the smaller ones fit into its pool.
    capture_order: Literal["falling", "rising"] = Field(
        default="falling", description="the order of the sizes"
    )
    # A second graph of the same pool may reuse the memory of the first one's outputs.
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
    # Two prefixes with one hash must not share pages. By chance that never happens in a test.
    num_hashes: Count | None = Field(
        default=None, description="different hashes of prefixes; a small number makes collisions"
    )
    # A case that means to judge a preemption and has none would be green for nothing.
    happens: tuple[Event, ...] = Field(
        default=(),
        description="events that must happen, or the case fails; with other values it is skipped",
    )
    # Another seed draws other prompts, and the decisions of another schedule are right too.
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


class ServingParams(KernelChoices, CacheParams, BatchParams, GraphParams, RankParams):
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
