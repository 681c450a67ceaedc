"""The conditions of the router (a unit is a token), of the alignment of its choices (an expert), and of the quantizers
(a row)."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

from harness.core.conditions.model import Dimension, Never, Point, Space
from harness.core.conditions.parts import (
    ENDS,
    ROW_EXAMPLES,
    ROW_VALUES,
    around,
    batch_rules,
    choice,
    end_in_page,
    neighbours_empty,
    none_of,
    place_of,
    places,
    ranged,
    row_values,
)
from harness.core.op_params import QuantizeBlocksParams

TOKENS = ranged("tokens", "tokens of the call", "1 2 17 65", "num_tokens")
EXPERTS = ranged("experts", "experts", "1 2 17 65", "num_experts")
PER_TOKEN = ranged("per token", "experts of a token", "1 2 9", "num_experts_per_tok")
LIVE = ("all", "some", "one")
LOGITS = ("plain", "one", "large", "flat", "negative")
IDS = ("first", "last", "both", "inner")
FAR_LOGITS, FLAT_LOGITS, OUTWEIGHED = 1e3, 0.05, 20.0


def _logits(row: list[float]) -> str:
    """The kind of a token's logits."""
    top, *rest = sorted(row, reverse=True)
    if top >= FAR_LOGITS:
        return "large"
    if rest and top - rest[-1] <= FLAT_LOGITS:
        return "flat"
    if rest and top - rest[0] >= OUTWEIGHED:
        return "one"
    return "negative" if top < 0 else "plain"


def read_route(logits: Any, *, num_experts_per_tok: int, num_live: int | None = None, **_: Any) -> list[Point]:
    """A point for each token."""
    tokens, experts = logits.shape
    rows, live = logits.float().tolist(), tokens if num_live is None else num_live
    call = {
        "tokens": TOKENS.of(tokens),
        "experts": EXPERTS.of(experts),
        "per token": PER_TOKEN.of(num_experts_per_tok),
        "live": "not given" if num_live is None else "all" if live == tokens else "some",
    }
    points: list[Point] = []
    for t, row in enumerate(rows):
        point: dict[str, str | None] = {**call, "place": place_of(t, tokens), "row": "live"}
        if t >= live:
            points.append(point | {"row": "padded"})
            continue
        best = sorted(range(experts), key=row.__getitem__)[-num_experts_per_tok:]
        edges = 0 in best, experts - 1 in best
        point["ids"] = "both" if all(edges) else "first" if edges[0] else "last" if edges[1] else "inner"
        points.append(point | {"values": _logits(row)})
    return points


def _route() -> Space:
    live = {"ids": IDS, "values": LOGITS}
    why, one_row = "a token has distinct experts", "the first token is live"
    counts = ("not given", "all", "some")
    return Space(
        op="route_experts",
        read=read_route,
        optional=frozenset(live),
        dimensions=(
            TOKENS, EXPERTS, PER_TOKEN, places(),
            Dimension("row", ("live", "padded"), "whether the token is live"),
            Dimension("live", counts, "tokens that are live, as the kernel is told",
                      {"not given": ({"num_live": None},)}, words={"all": "num_live", "some": "num_live"}),
            Dimension("ids", IDS, "whether the token has the first and the last expert"),
            Dimension("values", LOGITS, "logits of the token", {label: ({"values": label},) for label in LOGITS}),
        ),
        rules=(
            *batch_rules(TOKENS),
            *none_of("row", ("padded",), "a padded token is not routed", **live),
            *none_of("row", ("padded",), "all tokens are live", live=counts[:2]),
            *none_of("place", ("only", "first"), one_row, row=("padded",)),
            *none_of("tokens", ("1",), one_row, row=("padded",), live=("some",)),
            *none_of("place", ("only",), one_row, live=("some",)),
            *(Never({"live": ("some",), "place": ("last",), name: labels}, "the last token is padded then")
              for name, labels in {"row": ("live",), **live}.items()),
            *(Never({"experts": (label,), "per token": (number,)}, why) for label, sizes in EXPERTS.numbers.items()
              for number, several in PER_TOKEN.numbers.items() if sizes.stop <= several.start),
            *none_of("experts", ("1",), "the only expert is the first and the last", ids=("first", "last", "inner"),
                     values=("one", "flat")),
            Never({"experts": EXPERTS.classes[1:], "per token": ("1",), "ids": ("both",)}, "one expert is not two"),
        ),
    )  # fmt: skip


BLOCK = ranged("block", "choices of a block", "1 2 16 64", "block_size")
RUNS = ("none", "one", "part", "block", "blocks", "past")


def _run(count: int, size: int) -> str:
    """How many choices an expert has, in blocks of `size`."""
    if count == 0:
        return "none"
    if count % size == 0:
        return "block" if count == size else "blocks"
    return "past" if count > size else "one" if count == 1 else "part"


def read_align(topk_ids: Any, *, num_experts: int, block_size: int, **_: Any) -> list[Point]:
    """A point for each expert."""
    counts = [0] * num_experts
    for row in topk_ids.tolist():
        for expert in row:
            counts[expert] += 1
    call = {
        "tokens": TOKENS.of(topk_ids.shape[0]),
        "per token": PER_TOKEN.of(topk_ids.shape[1]),
        "experts": EXPERTS.of(num_experts),
        "block": BLOCK.of(block_size),
    }
    return [
        {**call, "run": _run(n, block_size), "place": place_of(e, num_experts), "around": around(e, counts)}
        for e, n in enumerate(counts)
    ]


def _no_runs(tokens: range, size: range) -> tuple[str, ...]:
    """The runs that no expert has: each of `tokens` tokens chooses it once at most."""
    blocks, counts = (range(numbers.start, min(numbers.stop, 200)) for numbers in (size, tokens))
    # What the smallest blocks and the largest do not give, no other size gives.
    found = {_run(count, block) for block in {*blocks[:3], blocks[-1]} for count in range(counts.stop)}
    return tuple(run for run in RUNS if run not in found)


def _align() -> Space:
    why = "a token chooses an expert once"
    return Space(
        op="align_experts",
        read=read_align,
        dimensions=(
            Dimension("run", RUNS, "choices of the expert, in blocks"),
            TOKENS, PER_TOKEN, EXPERTS, BLOCK, places(), neighbours_empty(),
        ),
        rules=(
            *batch_rules(EXPERTS, has_around=True),
            *(Never({"experts": (label,), "per token": (number,)}, "a token has distinct experts")
              for label, sizes in EXPERTS.numbers.items()
              for number, several in PER_TOKEN.numbers.items() if sizes.stop <= several.start),
            Never({"block": ("1",), "run": ("one", "part", "past")}, "a block of one is whole"),
            *(Never({"tokens": (label,), "block": (size,), "run": gone}, why)
              for label, tokens in TOKENS.numbers.items() for size, sizes in BLOCK.numbers.items()
              if (gone := _no_runs(tokens, sizes))),
            *none_of("tokens", ("1",), why, run=("part", "blocks", "past")),
            *none_of("experts", ("1",), "every token chooses it", run=("none",)),
            *none_of("place", ("only",), "every token chooses it", run=("none",)),
            *(Never({"tokens": TOKENS.classes[1:], name: (label,), "run": ("one",)}, "every token chooses it")
              for name, label in (("experts", "1"), ("place", "only"))),
        ),
    )  # fmt: skip


WIDTH = ranged("width", "elements of a row", "1 128 129", "width")
AMAX = ("zero", "plain", "large")


def read_quantize_fp8(x: Any, *, num_live: Any = None, **_: Any) -> list[Point]:
    """A point for each row."""
    tokens, width = x.shape
    live = tokens if num_live is None else int(num_live)
    sizes = x[:live].float().abs()
    largest, peaks = sizes.amax(dim=1).tolist(), sizes.argmax(dim=1).tolist()
    amax = max(largest, default=0.0)
    call = {
        "live": "all" if live == tokens else "one" if live == 1 else "some",
        "tokens": TOKENS.of(tokens),
        "width": WIDTH.of(width),
        "amax": "large" if amax >= 2.0**9 else "plain" if amax else "zero",
    }
    points: list[Point] = []
    for t in range(tokens):
        point: dict[str, str | None] = {**call, "place": place_of(t, tokens), "row": "live"}
        if t >= live:
            points.append(point | {"row": "padded"})
            continue
        point["values"] = "zero" if not largest[t] else "largest" if largest[t] == amax else row_values(largest[t])
        if largest[t]:
            point["peak"] = end_in_page(peaks[t], width) if width > 1 else "inner"
        points.append(point)
    return points


def _quantize_fp8() -> Space:
    values = ("plain", "zero", "tiny", "largest", "large")
    why, zero = "the first row is live", "a row of zeros has no peak"
    return Space(
        op="quantize_fp8",
        read=read_quantize_fp8,
        optional=frozenset({"values", "peak"}),
        dimensions=(
            TOKENS, WIDTH, places(),
            Dimension("row", ("live", "padded"), "whether the row is live"),
            Dimension("live", LIVE, "rows that are live", {"one": ({"num_live": 1},)}),
            Dimension("amax", AMAX, "largest element of the live rows"),
            Dimension("values", values, "largest element of the row", {v: ROW_EXAMPLES[v] for v in ROW_VALUES}),
            Dimension("peak", ENDS, "where the largest element of the row is",
                      {label: ({"peaks": label},) for label in ENDS}),
        ),
        rules=(
            *batch_rules(TOKENS),
            *none_of("row", ("padded",), "what is in a padded row does not count", values=values, peak=ENDS),
            *none_of("row", ("padded",), why, live=("all",), place=("only", "first"), tokens=("1",)),
            *none_of("live", ("one", "some"), why, tokens=("1",), place=("only",)),
            *(Never({"live": ("one", "some"), "place": ("last",), name: labels}, "the last row is padded then")
              for name, labels in {"row": ("live",), "values": values, "peak": ENDS}.items()),
            *(Never({"live": ("one",), "place": ("middle",), name: labels}, "one row is live")
              for name, labels in {"row": ("live",), "values": values, "peak": ENDS}.items()),
            *none_of("live", ("one",), "the only live row is the largest", values=("plain", "tiny", "large")),
            *none_of("tokens", ("1",), "the only live row is the largest", values=("plain", "tiny", "large")),
            *none_of("place", ("only",), "the only live row is the largest", values=("plain", "tiny", "large")),
            *none_of("values", ("zero",), zero, peak=ENDS),
            *none_of("amax", ("zero",), zero, peak=ENDS, values=("plain", "tiny", "largest", "large")),
            *none_of("amax", ("plain",), "it is larger than the largest", values=("large",)),
            *(Never({name: labels, "values": ("zero",), "amax": AMAX[1:]}, "the only live row is the largest")
              for name, labels in (("live", ("one",)), ("tokens", ("1",)), ("place", ("only",)))),
        ),
    )  # fmt: skip


RUN = ranged("run", "rows of its expert", "1 2 16 128 129", "expert_rows")
GROUPS = ranged("experts", "experts", "1 2 17")
BLOCKS_OF_ROW = ("one", "few", "many")


def read_quantize_blocks(x: Any, expert_offsets: Any, *, block_format: str, **_: Any) -> list[Point]:
    """A point for each row that an expert has."""
    tokens, width = x.shape
    bounds = expert_offsets.tolist()
    counts = [end - start for start, end in pairwise(bounds)]
    largest = x[: bounds[-1]].float().abs().amax(dim=1).tolist()
    blocks = width // QuantizeBlocksParams.BLOCKS[block_format]
    call = {
        "format": block_format,
        "width": "one" if blocks == 1 else "few" if blocks <= 8 else "many",
        "experts": GROUPS.of(len(counts)),
        "orphans": "some" if tokens > bounds[-1] else "none",
    }
    points: list[Point] = []
    for expert, (start, count) in enumerate(zip(bounds, counts, strict=False)):
        own = {
            **call,
            "run": RUN.of(count) if count else None,
            "place": place_of(expert, len(counts)),
            "around": around(expert, counts),
        }
        points += [
            {**own, "tile": end_in_page(row, 128), "values": row_values(largest[start + row])} for row in range(count)
        ]
    return points


def _quantize_blocks() -> Space:
    formats = tuple(QuantizeBlocksParams.BLOCKS)
    return Space(
        op="quantize_blocks",
        read=read_quantize_blocks,
        dimensions=(
            RUN,
            Dimension("tile", ENDS, "place of the row in its tile of 128 rows of scales"),
            GROUPS,
            Dimension("place", places().classes, "place of its expert"),
            neighbours_empty(),
            choice("format", "format of the blocks", "block_format", **{name: name for name in formats}),
            Dimension("width", BLOCKS_OF_ROW, "blocks of a row: one, up to 8, more",
                      {"few": ({"width": 64}, {"width": 128}), "many": ({"width": 320},)}),
            choice("orphans", "rows behind the rows of all experts", "orphan_rows", none=0, some=3),
            Dimension("values", ROW_VALUES, "largest element of the row", ROW_EXAMPLES),
        ),
        rules=(
            *batch_rules(GROUPS, has_around=True),
            *none_of("run", RUN.classes[:3], "the tile is longer than the run", tile=("last",)),
            *none_of("run", ("1",), "one row is the first", tile=("inner",)),
        ),
    )  # fmt: skip


SPACES = (_route(), _align(), _quantize_fp8(), _quantize_blocks())
