"""The table of ops: the contract of a kernel under test. No torch here, so that lists are instant.

Letters: B requests, S query tokens a request, T tokens, H heads, P page size, R latent rank (`kv_lora_rank`),
E rope dim, D = R + E, V value dim, N blocks, M block-table columns, X experts, k experts a token, C context tokens
(in `quantize_blocks` bytes of a row), G scales a row in S rows.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.registry import Registry

PAGE_SIZE = 64
"""Slots of a KV page; FlashMLA and FlashInfer MLA read whole pages of 64."""


def latent_rank(head_dim: int) -> int:
    """R of a latent of D = R + E elements: the largest power of two below D (512 of 576). A kernel knows only D."""
    return 1 << ((head_dim - 1).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor that an op returns: its name, its shape in letters, and the site of its unwritten elements."""

    name: str
    shape: str
    site: str


@dataclass(frozen=True, slots=True)
class Op:
    """The signature and contract of one op."""

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    outputs: tuple[Output, ...]
    summary: str
    optional: tuple[str, ...] = ()
    """Keywords that a kernel need not have. It is then called without them."""

    @property
    def signature(self) -> str:
        """The signature as in Python."""
        return f"{self.name}({', '.join(self.positional)}, *, {', '.join(self.keywords)})"


OPS: Registry[Op] = Registry(
    "op",
    (
        Op(
            "mla_decode",
            ("q", "kv_cache", "block_table", "seq_lens"),
            ("scale", "kv_scale", "metadata"),
            (Output("out", "B S H R", "output"), Output("lse", "B H S", "lse")),
            "absorbed MLA decode over a paged latent cache; causal over the last S positions; slots past "
            "seq_lens[b], unused pages and padded table entries influence no live row; R is the largest power of two "
            "below D, lse is a natural logarithm; with `window`, a query sees the last keys only",
            optional=("window", "workspace"),
        ),
        Op(
            "mla_decode_sparse",
            ("q", "kv_cache", "indices"),
            ("scale", "kv_scale"),
            (Output("out", "T H R", "output"), Output("lse", "T H", "lse")),
            "absorbed MLA of each query token over the slots in `indices` [T, K] of a paged latent cache; a negative "
            "index stands for no slot and influences no row",
        ),
        Op(
            "mla_decode_plan",
            ("seq_lens",),
            ("num_heads",),
            (Output("metadata", "", "sched_meta"),),
            "split-KV schedule for mla_decode; graph-safe only if its address is stable or it is captured",
            optional=("kv_itemsize",),
        ),
        Op(
            "context_attention",
            ("q", "k", "v", "query_start_loc", "chunk_start_loc"),
            ("scale",),
            (Output("out", "T H V", "context.output"), Output("lse", "H T", "context.lse")),
            "attention of new tokens over one chunk of cached context; writes only tokens that have context in it",
        ),
        Op(
            "merge_attn_states",
            ("prefix_out", "prefix_lse", "suffix_out", "suffix_lse"),
            ("num_tokens_with_context",),
            (Output("out", "T H V", "output"), Output("lse", "H T", "lse")),
            "merges two partial attentions; tokens at or past num_tokens_with_context are copied from the suffix; "
            "an lse of -inf or +inf marks an empty side; its output is not read",
        ),
        Op(
            "write_kv",
            ("kv_c", "k_pe", "kv_cache", "slot_mapping"),
            ("kv_scale",),
            (),
            "stores new latents in the paged cache; negative slots are skipped",
        ),
        Op(
            "quantize_fp8",
            ("x",),
            ("num_live",),
            (Output("x8", "T K", "output"), Output("scale", "1", "output")),
            "per-tensor e4m3 quantization; the amax covers live rows only",
        ),
        Op(
            "route_experts",
            ("logits",),
            ("num_experts_per_tok",),
            (Output("ids", "T k", "router.ids"), Output("weights", "T k", "router.weights")),
            "softmax top-k routing; ids are int32 and distinct for each token; with `num_live`, only the first so many "
            "tokens are written",
            optional=("num_live",),
        ),
        Op(
            "quantize_blocks",
            ("x", "expert_offsets"),
            ("block_format",),
            (Output("values", "T C", "output"), Output("scales", "S G", "scale.blocks")),
            "codes with a scale for each block of a row (nvfp4, mxfp4, mxfp8), rows sorted by expert; rows past "
            "expert_offsets[-1] influence nothing, and scale rows that round an expert's up to tiles of 128 are code 0",
        ),
    ),
)
