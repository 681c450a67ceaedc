"""The op table: what a kernel under test promises. No torch here, so that lists are instant.

Letters: B requests, S query tokens a request, T tokens, H heads, P page size, R latent rank (`kv_lora_rank`),
E rope dim, D = R + E, V value dim, N blocks, M block-table columns, X experts, k experts a token, C context tokens.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.registry import Registry

PAGE_SIZE = 64
"""Slots of a KV page; FlashMLA and FlashInfer MLA read whole pages of 64."""


def latent_rank(head_dim: int) -> int:
    """R of a latent of D = R + E elements: the largest power of two below D (512 of 576). A kernel is given only D."""
    return 1 << ((head_dim - 1).bit_length() - 1)


@dataclass(frozen=True, slots=True)
class Output:
    """One tensor an op returns: its name, its shape in letters, and the site its unwritten elements belong to."""

    name: str
    shape: str
    site: str


@dataclass(frozen=True, slots=True)
class Op:
    """The signature and promise of one op."""

    name: str
    positional: tuple[str, ...]
    keywords: tuple[str, ...]
    outputs: tuple[Output, ...]
    summary: str

    @property
    def signature(self) -> str:
        """The signature as a user writes it."""
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
            "below D, lse is a natural logarithm",
        ),
        Op(
            "mla_decode_plan",
            ("seq_lens",),
            ("num_heads",),
            (Output("metadata", "", "sched_meta"),),
            "split-KV schedule for mla_decode; graph-safe only if its address is stable or it is captured",
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
            "an lse of -inf or +inf marks an empty side, whose output is not read",
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
            "softmax top-k routing; ids are int32 and distinct for each token",
        ),
    ),
)
