"""The conditions of sparse decode (a unit is a token), of attention over a context (a request), of merges (a token).

Scores are read in the first head; those of packed records are not.
"""

from __future__ import annotations

from collections import Counter
from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Dimension, Never, Point, Space
from harness.core.conditions.parts import (
    SCORE_EXAMPLES,
    SCORES,
    TYPES,
    around,
    batch_rules,
    choice,
    equal_rules,
    heads,
    neighbours_empty,
    none_of,
    order_of,
    place_of,
    places,
    ranged,
    same_as_before,
    scores_of,
    shared_with,
)
from harness.core.ops import PAGE_SIZE

HEADS = heads()
BATCH = ranged("batch", "requests", "1 2 17")
SMALL = {"kv_lora_rank": 16, "qk_rope_head_dim": 8}
LATENT = Dimension(
    "latent",
    ("other", "512+64"),
    "elements of a slot",
    {"other": (SMALL,), "512+64": ({"kv_lora_rank": 512, "qk_rope_head_dim": 64},)},
)
POOL = Dimension(
    "pool",
    ("packed", "apart"),
    "whether pages lie one behind the other",
    {"packed": ({"layout": "contiguous"},), "apart": ({"layout": "block_major"}, {"layout": "padded_pages"})},
)

TOKENS = ranged("tokens", "tokens of the call", "1 2 17")
CHOSEN = ranged("chosen", "slots of the token", "0 1 2 64 65", "num_chosen")
WIDTH = ranged("width", "slots that a row of the list has room for", "1 2 64 65", "topk")
SOME = CHOSEN.classes[1:]
SPARSE_ORDERS, SHARED, BLOCKS = ("rising", "falling", "mixed"), ("own", "some", "all"), ("below 128", "128+")


def read_sparse(q: Any, kv_cache: Any, indices: Any, *, scale: float, kv_scale: float | None = None, **_: Any) -> Any:
    """A point for each token. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows = [[slot for slot in row if slot >= 0] for row in indices.tolist()]
    last = [max((i for i, slot in enumerate(row) if slot >= 0), default=-1) for row in indices.tolist()]
    holders = Counter(slot for row in rows for slot in row)
    kv = TYPES.get(str(kv_cache.dtype), "fp8_ds_mla")
    keys = None if kv == "fp8_ds_mla" else kv_cache.float()
    factor, width = scale * (1.0 if kv_scale is None else float(kv_scale)), indices.shape[1]
    call = {
        "heads": HEADS.of(q.shape[1]),
        "tokens": TOKENS.of(len(rows)),
        "width": WIDTH.of(width),
        "kv": kv,
        "latent": "512+64" if q.shape[2] == 576 else "other",
        "pool": "packed" if kv_cache.stride(0) == kv_cache.shape[1] * kv_cache.shape[2] else "apart",
    }
    points: list[Point] = []
    for t, own in enumerate(rows):
        point: dict[str, str | None] = {
            **call,
            "chosen": CHOSEN.of(len(own)),
            "list": "full" if len(own) == width else "inside" if last[t] >= len(own) > 0 else "short",
            "place": place_of(t, len(rows)),
            "around": around(t, rows),
            "order": order_of(own),
            "shared": shared_with(own, holders),
        }
        if own:
            point["block"] = BLOCKS[max(own) // PAGE_SIZE >= 128]
            if keys is not None:
                pages, slots = [slot // PAGE_SIZE for slot in own], [slot % PAGE_SIZE for slot in own]
                found = (keys[pages, slots] @ q[t, 0].float()).tolist()
                point["values"] = scores_of([score * factor for score in found])
        points.append(point)
    return points


def _sparse() -> Space:
    no_keys = {"values": SCORES, "order": SPARSE_ORDERS, "shared": SHARED, "block": BLOCKS}
    rules = [
        *batch_rules(TOKENS, has_around=True),
        *none_of("chosen", ("none",), "an empty row has no slots", list=("full", "inside"), **no_keys),
        *none_of(
            "chosen", ("1",), "it has one slot", order=SPARSE_ORDERS, values=("ties", "one key"), shared=("some",)
        ),
        *none_of("tokens", ("1",), "no other token has slots", shared=("some", "all")),
        *none_of("place", ("only",), "no other token has slots", shared=("some", "all")),
        *none_of("kv", ("fp8_ds_mla",), "scores of packed records are not read", values=SCORES),
        Never({"kv": ("fp8_ds_mla",), "latent": ("other",)}, "a record of fp8_ds_mla has one size"),
        Never({"chosen": ("none",), "tokens": ("1",)}, "a call has a live token"),
        Never({"chosen": ("none",), "place": ("only",)}, "a call has a live token"),
    ]
    for label, numbers in CHOSEN.numbers.items():
        for room, sizes in WIDTH.numbers.items():
            if numbers.start >= sizes.stop:
                rules.append(Never({"chosen": (label,), "width": (room,)}, "a row of the list has room for its slots"))
            elif numbers != sizes:
                why = "a full row has as many slots as there is room"
                rules.append(Never({"chosen": (label,), "width": (room,), "list": ("full",)}, why))
            elif len(numbers) == 1:
                why = "a row that is not full has fewer slots than there is room"
                rules.append(Never({"chosen": (label,), "width": (room,), "list": ("short", "inside")}, why))
    rules.append(Never({"width": ("1",), "list": ("inside",)}, "nothing is behind the only entry"))
    return Space(
        op="mla_decode_sparse",
        read=read_sparse,
        optional=frozenset(no_keys),
        dimensions=(
            CHOSEN,
            Dimension("list", ("full", "short", "inside"), "whether -1 ends the list, or stands inside too",
                      {"inside": ({"slot_order": "holes"},)}),
            WIDTH, HEADS, TOKENS, places(), neighbours_empty(),
            Dimension("order", SPARSE_ORDERS, "order of its slots in the cache",
                      {"rising": ({"slot_order": "rising"},), "falling": ({"slot_order": "falling"},),
                       "mixed": ({"slot_order": "random"},)}),
            Dimension("shared", SHARED, "its slots that other tokens have too",
                      {"own": ({"slot_order": "random"},), "some": ({"slot_order": "some"},),
                       "all": ({"slot_order": "same"},)}),
            Dimension("block", BLOCKS, "its largest block number", {"below 128": ({"num_blocks": 8},),
                                                                    "128+": ({"num_blocks": 150},)}),
            POOL,
            choice("kv", "type of the cache", "kv", fp32="fp32", bf16="bf16", fp8_e4m3="fp8_e4m3",
                   fp8_ds_mla="fp8_ds_mla"),
            LATENT,
            Dimension("values", SCORES, "scores of the token in the first head", SCORE_EXAMPLES),
        ),
        rules=tuple(rules),
    )  # fmt: skip


QUERIES = ranged("queries", "new tokens of the request", "1 2 16 17 64 65", "query_lens")
CONTEXT = ranged("context", "context tokens of the request in this chunk", "0 1 2 64 65 128 129", "context_lens")


def read_context(
    q: Any, k: Any, v: Any, query_start_loc: Any, chunk_start_loc: Any, *, scale: float, **_: Any
) -> list[Point]:
    """A point for each request. The tensors are those of :data:`harness.core.ops.OPS`."""
    rows, keys = list(pairwise(query_start_loc.tolist())), list(pairwise(chunk_start_loc.tolist()))
    sizes = [(row[1] - row[0], key[1] - key[0]) for row, key in zip(rows, keys, strict=True)]
    points: list[Point] = []
    for b, (tokens, context) in enumerate(sizes):
        point: dict[str, str | None] = {
            "queries": QUERIES.of(tokens),
            "context": CONTEXT.of(context),
            "heads": HEADS.of(q.shape[1]),
            "batch": BATCH.of(len(rows)),
            "place": place_of(b, len(rows)),
            "around": around(b, [length for _, length in sizes]),
            "neighbour": same_as_before(b, sizes),
            "sizes": "192, 128" if (q.shape[2], v.shape[2]) == (192, 128) else "other",
        }
        if context:
            found = (k[slice(*keys[b]), 0].float() @ q[rows[b][1] - 1, 0].float()).tolist()
            point["values"] = scores_of([score * scale for score in found])
        points.append(point)
    return points


def _context() -> Space:
    live = CONTEXT.classes[1:]
    neighbour = ("equal", "other")
    return Space(
        op="context_attention",
        read=read_context,
        optional=frozenset({"neighbour", "values"}),
        dimensions=(
            QUERIES, CONTEXT, HEADS, BATCH, places(), neighbours_empty(),
            Dimension("neighbour", neighbour, "lengths of the request before, compared with this one"),
            Dimension("sizes", ("other", "192, 128"), "elements of a key and of a value",
                      {"other": ({"qk_head_dim": 24, "v_head_dim": 16},),
                       "192, 128": ({"qk_head_dim": 192, "v_head_dim": 128},)}),
            Dimension("values", SCORES, "scores of the request's last token in the first head", SCORE_EXAMPLES),
        ),
        rules=(
            *batch_rules(BATCH, {"neighbour": neighbour}, has_around=True),
            *equal_rules("context", "none", live),
            *none_of("context", ("none",), "a request without context has no keys", values=SCORES),
            *none_of("context", ("none",), "a chunk has a key", batch=("1",), place=("only",)),
            *none_of("context", ("1",), "it has one key", values=("ties", "one key")),
        ),
    )  # fmt: skip


ROWS = ranged("tokens", "tokens of the call", "1 2 17 65", "num_tokens")
SIDES = ("both", "no prefix", "no suffix", "neither", "copied")
FAR_APART = 50.0
"""A difference of two lse from which the smaller side has no weight in float32."""


def read_merge(
    prefix_out: Any,
    prefix_lse: Any,
    suffix_out: Any,
    suffix_lse: Any,
    *,
    num_tokens_with_context: int | None = None,
    **_: Any,
) -> list[Point]:
    """A point for each token, by the lse of its last head."""
    tokens, num_heads, width = prefix_out.shape
    merged = tokens if num_tokens_with_context is None else num_tokens_with_context
    prefix, suffix = prefix_lse[-1].tolist(), suffix_lse[-1].tolist()
    infinite = ("-inf", "inf")
    sides = []
    for t in range(tokens):
        empty = str(prefix[t]) in infinite, str(suffix[t]) in infinite
        sides.append("copied" if t >= merged else SIDES[empty[0] + 2 * empty[1]])
    call = {
        "count": "all" if merged == tokens else "some" if merged else "none",
        "tokens": ROWS.of(tokens),
        "heads": HEADS.of(num_heads),
        "width": "128" if width == 128 else "other",
        "prefix": "packed" if prefix_out.is_contiguous() else "columns",
        "suffix": "packed" if suffix_out.is_contiguous() else "columns",
    }
    points: list[Point] = []
    for t, side in enumerate(sides):
        point: dict[str, str | None] = {**call, "side": side, "place": place_of(t, tokens)}
        point["before"] = None if t == 0 else "same" if sides[t - 1] == side else "other"
        if side == "both":
            apart = prefix[t] - suffix[t]
            point["gap"] = "near" if abs(apart) < FAR_APART else "prefix above" if apart > 0 else "suffix above"
        elif side != "copied":
            point["sign"] = "+inf" if "inf" in (str(prefix[t]), str(suffix[t])) else "-inf"
        points.append(point)
    return points


def _merge() -> Space:
    gaps, signs, before = ("near", "prefix above", "suffix above"), ("-inf", "+inf"), ("same", "other")
    return Space(
        op="merge_attn_states",
        read=read_merge,
        optional=frozenset({"gap", "sign", "before"}),
        dimensions=(
            Dimension("side", SIDES, "which sides the token has",
                      {"both": ({"sides": "both"}, {"sides": "suffix_above"}, {"sides": "prefix_above"})}
                      | {label: ({"sides": label.replace(" ", "_")},) for label in SIDES[1:4]}),
            Dimension("sign", signs, "lse of an empty side", {sign: ({"empty_lse": sign},) for sign in signs}),
            Dimension("gap", gaps, "how far both lse lie apart",
                      {"near": ({"sides": "both"},)} | {g: ({"sides": g.replace(" ", "_")},) for g in gaps[1:]}),
            Dimension("count", ("none", "some", "all"), "tokens that have context"),
            ROWS, HEADS, places(),
            Dimension("before", before, "sides of the token before"),
            Dimension("width", ("other", "128"), "elements of a head", {"other": ({"v_head_dim": 16},),
                                                                        "128": ({"v_head_dim": 128},)}),
            Dimension("prefix", ("packed", "columns"), "strides of the prefix", {"columns": ({"padded": "both"},)}),
            Dimension("suffix", ("packed", "columns"), "strides of the suffix",
                      {"packed": ({"padded": "none"},), "columns": ({"padded": "suffix"}, {"padded": "both"})}),
        ),
        rules=(
            *batch_rules(ROWS, {"before": before}),
            *none_of("side", ("both", "copied"), "no side is marked empty", sign=signs),
            *none_of("side", SIDES[1:], "it has not both sides", gap=gaps),
            *none_of("count", ("all",), "nothing is copied", side=("copied",)),
            *none_of("count", ("none",), "all is copied", side=SIDES[:4], sign=signs, gap=gaps, before=("other",)),
            *none_of("count", ("some",), "one token has context or not", tokens=("1",), place=("only",)),
            Never({"count": ("some",), "place": ("first",), "side": ("copied",)}, "tokens with context come first"),
            *(Never({"count": ("some",), "place": ("last",), name: labels}, "tokens with context come first")
              for name, labels in (("side", SIDES[:4]), ("sign", signs), ("gap", gaps))),
            Never({"prefix": ("columns",), "suffix": ("packed",)}, "a first merge has columns on both sides"),
        ),
    )  # fmt: skip


SPACES = (_sparse(), _context(), _merge())
