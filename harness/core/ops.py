"""The table of ops: the contract of a kernel under test. No torch here.

Letters: B requests, S query tokens a request, T tokens, H heads, P page size, R latent rank (`kv_lora_rank`),
E rope dim, D = R + E, V value dim, N blocks, M block-table columns, X experts, k experts a token, C context tokens
(in `quantize_blocks` bytes of a row), G scales a row in S rows, W elements of a row that a record holds, L = M * P
positions of index logits.
"""

from __future__ import annotations

from dataclasses import dataclass

from harness.core.registry import Registry

PAGE_SIZE = 64
"""Slots of a KV page; FlashMLA and FlashInfer MLA read whole pages of 64."""


SCALED_BLOCK = 128
"""Elements of a row with one scale, as DeepSeek's fp8 activations have them."""


def aligned_sizes(num_choices: int, num_experts: int, block_size: int) -> tuple[int, int]:
    """The entries and blocks that `align_experts` returns: enough for the worst distribution of the choices."""
    size = min(num_choices * block_size, num_choices + num_experts * (block_size - 1))
    return size, -(-size // block_size)


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
    activations: tuple[str, ...] = ()
    """The positional arguments of the model's dtype. The first output has it too."""
    arguments: str = ""
    """The shapes and types of the arguments, and the types of the outputs, in words."""

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
            "below D, also given as `kv_lora_rank`; lse is a natural logarithm; with `window`, a query sees the last "
            "keys only",
            optional=("window", "workspace", "kv_lora_rank"),
            activations=("q",),
            arguments="q [B, S, H, D] and out: float32 with a float32 cache, else bfloat16, or the only type that "
            "`shapes` declares; kv_cache [N, P, D]; block_table [B, M] and seq_lens [B] int32; lse float32; "
            "kv_scale a float for fp8_e4m3, else None",
        ),
        Op(
            "mla_decode_sparse",
            ("q", "kv_cache", "indices"),
            ("scale", "kv_scale"),
            (Output("out", "T H R", "output"), Output("lse", "T H", "lse")),
            "absorbed MLA of each query token over the slots in `indices` [T, K] of a paged latent cache; a negative "
            "index names no slot and influences no row; lse is a natural logarithm",
            optional=("kv_lora_rank",),
            activations=("q",),
            arguments="q [T, H, D], kv_cache [N, P, D], types as in mla_decode; indices int32, a slot is page * P + "
            "place",
        ),
        Op(
            "index_logits",
            ("q", "weights", "kv_cache", "block_table", "seq_lens"),
            (),
            (Output("logits", "T L", "sparse.logits"),),
            "scores of an indexer (DeepSeek-V3.2) over paged keys: the sum over its X heads of weight * relu(query . "
            "key); the S query tokens of a request are its last ones, and see the keys up to themselves; what a row "
            "holds past its last key is undefined",
            activations=("q",),
            arguments="q [B, S, X, I] in the type of the cache, e4m3 beside records; weights [B, S, X] float32, with "
            "all scales but the keys' folded in; kv_cache [N, P, I] float32 or bfloat16, or uint8 records "
            "`indexer_planar`; block_table [B, M] and seq_lens [B] int32; logits float32, row b * S + s",
        ),
        Op(
            "select_topk",
            ("logits", "seq_lens"),
            ("topk",),
            (Output("indices", "T K", "sparse.topk"),),
            "the positions of the K largest logits of each row, -1 where a row is shorter than K; in any order, and of "
            "equal logits any; logits at or past a row's length influence nothing; `out` are the first rows of a "
            "longer buffer",
            optional=("out",),
            arguments="logits [B * S, L] float32; seq_lens [B] int32, and query token s of S sees seq_lens[b] - S + s "
            "+ 1 positions; indices int32",
        ),
        Op(
            "map_indices",
            ("positions", "block_table", "requests"),
            ("page_size",),
            (Output("slots", "T K", "sparse.topk"),),
            "the slot of the pool of each position of a token's request, as mla_decode_sparse reads them; -1 stays -1, "
            "wherever it stands; no other row than the T of `positions` is written; `out` are the first rows of a "
            "longer buffer",
            optional=("out",),
            arguments="positions [T, K] int32; block_table [B, M] int32; requests [T or more] int32, the row of the "
            "table for each token of the batch; slots int32, page * P + place",
        ),
        Op(
            "mla_decode_plan",
            ("seq_lens",),
            ("num_heads",),
            (Output("metadata", "", "sched_meta"),),
            "split-KV schedule for mla_decode; graph-safe only if its address is stable or it is captured",
            arguments="seq_lens [B] int32; metadata is any object, and reaches mla_decode as it is",
            optional=("kv_itemsize",),
        ),
        Op(
            "context_attention",
            ("q", "k", "v", "query_start_loc", "chunk_start_loc"),
            ("scale",),
            (Output("out", "T H V", "context.output"), Output("lse", "H T", "context.lse")),
            "attention of new tokens over one chunk of cached context; writes only tokens that have context in it; "
            "lse is a natural logarithm",
            activations=("q", "k", "v"),
            arguments="q [T, H, E'], k [C, H, E'], v [C, H, V] and out: bfloat16; in the reference engine float32, "
            "unless `shapes` declares bfloat16 alone; lse float32; query_start_loc and chunk_start_loc [B + "
            "1] int32",
        ),
        Op(
            "merge_attn_states",
            ("prefix_out", "prefix_lse", "suffix_out", "suffix_lse"),
            ("num_tokens_with_context",),
            (Output("out", "T H V", "output"), Output("lse", "H T", "lse")),
            "merges two partial attentions; tokens at or past num_tokens_with_context are copied from the suffix; "
            "an lse of -inf or +inf marks an empty side; its output is not read; lse is a natural logarithm",
            activations=("prefix_out", "suffix_out"),
            arguments="outputs [T, H, V] as in context_attention; lse [H, T] float32; num_tokens_with_context an int, "
            "or None for all tokens",
        ),
        Op(
            "write_kv",
            ("kv_c", "k_pe", "kv_cache", "slot_mapping"),
            ("kv_scale",),
            (),
            "stores new latents in the paged cache; negative slots are skipped",
            activations=("kv_c", "k_pe"),
            arguments="kv_c [T, R] and k_pe [T, E] as q of mla_decode; kv_cache [N, P, D]; slot_mapping [T] int64; "
            "kv_scale a float for fp8_e4m3, else None",
        ),
        Op(
            "quantize_fp8",
            ("x",),
            ("num_live",),
            (Output("x8", "T K", "output"), Output("scale", "1", "output")),
            "per-tensor e4m3 quantization; the amax covers live rows only; a kernel may return scales of rows [T, 1] "
            "or of blocks of a row [T, K / 128] instead",
            arguments="x [T, K] bfloat16 (float32 in the reference engine); x8 float8_e4m3fn; scale float32; num_live "
            "an int, an int32 tensor [1], or None for all rows",
        ),
        Op(
            "route_experts",
            ("logits",),
            ("num_experts_per_tok",),
            (Output("ids", "T k", "router.ids"), Output("weights", "T k", "router.weights")),
            "softmax top-k routing; ids are int32 and distinct for each token; with `num_live`, only the first so many "
            "tokens are written",
            optional=("num_live",),
            arguments="logits [T, X] float32; ids int32; weights float32",
        ),
        Op(
            "align_experts",
            ("topk_ids",),
            ("num_experts", "block_size"),
            (
                Output("sorted_ids", "P", "router.ids"),
                Output("expert_ids", "B", "router.ids"),
                Output("num_padded", "1", "output"),
            ),
            "the T * k choices sorted by expert, each expert's run filled up to a multiple of block_size with T * k, "
            "and the expert of each block; num_padded entries are live, in a run any order is right, and nothing "
            "behind them is read",
            arguments="topk_ids [T, k] int32; outputs int32, P the smaller of T * k * block_size and T * k + "
            "num_experts * (block_size - 1), B blocks of it, rounded up",
        ),
        Op(
            "quantize_blocks",
            ("x", "expert_offsets"),
            ("block_format",),
            (Output("values", "T C", "output"), Output("scales", "S G", "scale.blocks")),
            "codes with a scale for each block of a row (nvfp4, mxfp4, mxfp8), rows sorted by expert; rows past "
            "expert_offsets[-1] influence nothing, and scale rows that round an expert's up to tiles of 128 are code 0",
            arguments="x [T, K] bfloat16 (float32 in the reference engine); expert_offsets [X + 1] int32; values and "
            "scales uint8",
        ),
        Op(
            "write_records",
            ("x", "cache", "slot_mapping"),
            ("record_format", "scale"),
            (),
            "stores rows x [T, W] as records in the blocks of a byte cache [N, P, bytes of a record], which may be one "
            "layer's part of blocks of several layers; negative slots are skipped; see docs/record-formats.md",
            arguments="x [T, W] bfloat16; cache [N, P, bytes of a record] uint8; slot_mapping [T] int64; "
            "record_format a name; scale a float for formats with a scale of the whole cache, else None",
        ),
        Op(
            "read_records",
            ("cache", "block_table", "cu_seq_lens"),
            ("record_format", "scale"),
            (Output("out", "T W", "output"),),
            "the records of each request, one request after another, as float32 rows; request b has the tokens "
            "cu_seq_lens[b] to cu_seq_lens[b + 1]; other slots influence no row",
            arguments="cache as in write_records; block_table [B, M] and cu_seq_lens [B + 1] int32; out float32",
        ),
    ),
)
