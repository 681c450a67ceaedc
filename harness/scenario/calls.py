"""The draw of a call of any op from its conditions: parameters of the call, and of each of its
unlike units.

What shows a class is read from the dimensions. A class that several units decide together, such as
a place or an equal neighbour, is arranged here.
"""

from __future__ import annotations

import base64
import functools
import json
import zlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from random import Random
from typing import Any

from pydantic import ValidationError

from harness.core.conditions.model import Combination, Dimension
from harness.core.conditions.table import SPACES, key_of
from harness.core.files import rows_beside, with_tuples
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import PAGE_SIZE
from harness.core.registry import attribute_at
from harness.scenario.batches import decode_call

RECORDS = SPACES["read_records"]
Given = dict[str, Any]
Wanted = dict[str, str]
"""Dimension -> class that a unit of the call shall show."""

MOST_ELEMENTS = 400_000
"""Elements of the queries and keys of a call of `context_attention`."""
UNMET = Path(__file__).with_name("unmet_triples.json")
"""Op and mark of its classes -> a bit for each triple, in order; written with the arrays of calls.
"""
RARE = 0.6
"""How often a unit of a random call wants a triple that no array shows."""
MOST_DRAWN = 9
"""Units of a random call."""
MOST_CYCLED = 13
"""Words of a list that is repeated for more units."""


@dataclass(frozen=True, slots=True)
class Draws:
    """What the dimensions of an op do not say: how to draw its calls.

    - `lists`: parameters with one entry for each unit; other lists are repeated.
    - `empty`: the parameters of an empty unit.
    - `weights`: dimension -> how often each class is drawn; the first classes are more frequent
      without.
    - `settle`: makes the parameters legal; gets what the first unit wants.
    """

    lists: tuple[str, ...] = ()
    empty: Mapping[str, int] | None = None
    settle: Callable[[Random, Given, Wanted], None] = lambda random, given, first: None
    weights: Mapping[str, Sequence[float]] | None = None


def _padded(random: Random, given: Given, first: Wanted) -> None:
    """Tokens without a slot, counted among the tokens."""
    if (first.get("slot"), first.get("before")) == ("last", "same page"):
        # Only scattered slots show that, and few of them.
        given |= {"num_tokens": 150, "slot_order": "random"}
    tokens = given["num_tokens"]
    padding = first.get("padding") or random.choice(("none", "end", "between", "between"))
    if first.get("row") == "padded" and padding == "none":
        padding = "end" if first.get("place") == "last" else "between"
    padded = (
        0 if padding == "none" or tokens == 1 else random.choice((1, tokens // 3, tokens // 2)) or 1
    )
    given |= {"num_padded": padded, "padded_at": "end" if padding == "none" else padding}


def _beside_padded(random: Random, given: Given, first: Wanted) -> None:
    """Tokens without a slot, counted beside the others."""
    _padded(random, given, first)
    given["num_tokens"] -= given["num_padded"]


def _sparse(random: Random, given: Given, first: Wanted) -> None:
    most = max(given["num_chosen"])
    if not most:
        given["num_chosen"][-1] = most = 1
    if first.get("list") == "full" or "width" not in first:
        given["topk"] = (
            most
            if first.get("list") == "full" or random.random() < 0.3
            else max(most, given["topk"])
        )
    given["num_chosen"] = [min(n, given["topk"]) for n in given["num_chosen"]]
    if given["kv"] == "fp8_ds_mla":
        given |= {"kv_lora_rank": 512, "qk_rope_head_dim": 64}


def _context(random: Random, given: Given, first: Wanted) -> None:
    queries, contexts = given["query_lens"], given["context_lens"]
    if not any(contexts):
        contexts[-1] = 64
    for b in random.sample(range(len(queries)), len(queries)):
        # Long units of many heads cost more than they show.
        if (
            given["num_heads"] * (sum(queries) + sum(contexts)) * given["qk_head_dim"]
            > MOST_ELEMENTS
            and b
        ):
            queries[b], contexts[b] = (
                min(queries[b], random.choice((1, 2, 16))),
                min(contexts[b], 2),
            )


def _merge(random: Random, given: Given, first: Wanted) -> None:
    tokens = given["num_tokens"]
    count = first.get("count") or random.choice(("none", "some", "some", "all", "all"))
    if "count" not in first and {"sign", "gap"} & set(first):
        count = "all" if first.get("place") in ("last", "only") else "some"
    some = random.choice((1, tokens - 1, (tokens + 1) // 2)) or 1
    given["num_with_context"] = {"none": 0, "some": some, "all": tokens}[count]


def _records(random: Random, given: Given, first: Wanted) -> None:
    """Lengths from the end and the number of pages that each request wants."""
    if not any(given["seq_lens"]):
        given["seq_lens"][-1] = 70


def _route(random: Random, given: Given, first: Wanted) -> None:
    given["num_experts_per_tok"] = min(given["num_experts_per_tok"], given["num_experts"])
    live = first.get("live") or random.choice(("not given", "all", "some", "some"))
    tokens = given["num_tokens"]
    if live == "not given":
        given["num_live"] = None
    else:
        given |= {
            "kernel": "torch-live",
            "num_live": tokens if live == "all" or tokens < 2 else (tokens + 1) // 2,
        }


def _align(random: Random, given: Given, first: Wanted) -> None:
    experts, tokens, block = given["num_experts"], given["num_tokens"], given["block_size"]
    per_token = given["num_experts_per_tok"] = min(given["num_experts_per_tok"], experts)
    run = first.get("run")
    if (
        run in ("block", "blocks", "past", "part")
        and "tokens" not in first
        and random.random() < 0.8
    ):
        extra = {"block": 0, "blocks": block, "past": 1, "part": -1}[run]
        given["num_tokens"] = tokens = max(1, block + extra)
    # Few used experts have long runs; all of them, few empty neighbours.
    used = random.choice((per_token, per_token + 1, experts // 2, experts))
    if run in ("block", "blocks", "past"):
        used = random.choice((per_token, per_token, max(per_token, tokens * per_token // block)))
    given |= {"num_used": min(max(used, per_token), experts), "is_spread": random.random() < 0.7}


def _quantize(random: Random, given: Given, first: Wanted) -> None:
    tokens = given["num_tokens"]
    live = first.get("live") or random.choice(("all", "some", "some", "one"))
    given["num_live"] = {"all": tokens, "some": max((tokens + 1) // 2, 1), "one": 1}[live]
    amax = first.get("amax") or random.choice(("plain", "plain", "large", "zero"))
    names = {
        "plain": ("plain", "zero", "tiny"),
        "large": ("plain", "zero", "tiny", "large"),
        "zero": ("zero",),
    }[amax]
    given["values"] = [
        w if w in names else random.choice(names) for w in given.get("values", ["plain"])
    ]


def _blocks(random: Random, given: Given, first: Wanted) -> None:
    block = 16 if given["block_format"] == "nvfp4" else 32
    given["width"] = (
        block if first.get("width") == "one" or "width" not in given else given["width"]
    )


def _topk(random: Random, given: Given, first: Wanted) -> None:
    """As many positions as a request has, now and then: the last rank is where kernels differ."""
    if not any(given["seq_lens"]):
        given["seq_lens"][-1] = 17
    lengths = [n for n in given["seq_lens"] if n]
    if "topk" not in first and (first.get("rank") == "at" or random.random() < 0.4):
        given["topk"] = random.choice(lengths)


def _map(random: Random, given: Given, first: Wanted) -> None:
    """Lengths of requests, of one to three query tokens each, for about the tokens that are
    wanted.
    """
    numbers = {"1": 1, "2-16": random.randint(3, 9), "17+": 21}
    tokens = numbers[first.get("tokens") or random.choice(("1", "2-16", "17+"))]
    given["query_len"] = queries = 1 if tokens == 1 else random.choice((1, 1, 3))
    longest = {"1": 64, "2": 128, "3-4": 256, "5+": 330}.get(
        first.get("column", ""), random.choice((64, 130, 330))
    )
    lengths = [
        0
        if first.get("list") == "none" and tokens == 1
        else random.choice((0, 1, 5, 64, 65, 128, longest, longest))
        for _ in range(max(tokens // queries, 1))
    ]
    is_empty = first.get("list") == "none" and tokens == 1
    given["seq_lens"] = lengths if any(lengths) else [0] if is_empty else [*lengths[1:], longest]


DRAWS = {
    op: Draws(
        **with_tuples(row) | {"settle": attribute_at(f"harness.scenario.calls:_{row['settle']}")}
    )
    for op, row in rows_beside(__file__).items()
}
"""Op -> how its calls are drawn."""


def call_of_conditions(random: Random, op: str, kernel: str) -> Given:
    """The parameters of a small call with units of drawn triples of classes."""
    wanted = iter(lambda: _triple(random, op), None)
    if op != "mla_decode":
        given = {"kernel": kernel} | drawn_call(op, random, wanted, MOST_DRAWN)
        # Few elements of a row are often equal, and comparing such rows proves nothing.
        return given | {"width": max(given["width"], 16)} if op == "quantize_fp8" else given
    given = decode_call(random, wanted, MOST_DRAWN)
    # The calls of each run have pools of many blocks: these are slow.
    return given | {"kernel": kernel, "high_blocks": min(given["high_blocks"], 130)}


def _triple(random: Random, op: str) -> Wanted:
    """Classes of three dimensions that go together, most often three that no shipped call shows
    together.
    """
    space = SPACES[op]
    if random.random() < RARE and (rare := _unmet(op)):
        return dict(random.choice(rare))
    while True:
        found = [(d.name, random.choice(d.classes)) for d in random.sample(space.dimensions, 3)]
        if not space.why_not(found):
            return dict(found)


@functools.cache
def _unmet(op: str) -> list[Combination]:
    """The triples that no call of the op's array shows."""
    packed = json.loads(UNMET.read_text(encoding="utf-8")).get(key_of(SPACES[op]), "")
    flags = zlib.decompress(base64.b64decode(packed)) if packed else b""
    of_flag = zip(
        SPACES[op].combinations(3),
        (byte >> n & 1 for byte in flags for n in range(8)),
        strict=False,
    )
    return [one for one, is_unmet in of_flag if is_unmet]


def drawn_call(op: str, random: Random, wanted: Iterator[Wanted], largest: int = 140) -> Given:
    """The parameters of a call of `op` with at most `largest` units.

    The first of `wanted` decides what all units share, and each unit takes one that goes with that.
    """
    space, how, model = SPACES[op], DRAWS[op], KERNEL_PARAMS[op]
    plain = model().model_dump()
    first = next(wanted)
    given: Given = {}
    units: list[Given] = []
    for d in space.dimensions:
        if not _is_of_unit(d, plain) and (
            shows := d.shown_by(first.get(d.name) or _label(random, d, how))
        ):
            given |= _nearest(random, shows)
    counted = space[space.units]
    count = given.get(counted.param) or random.choice(
        counted.numbers[first.get(counted.name) or _label(random, counted, how)][:64]
    )
    count = min(count, largest)
    if first.get("place") in ("middle", "last") and count < 3:
        count = 3 if counted.name not in first else count
    if "num_tokens" in plain and counted.name == "tokens":
        given["num_tokens"] = count
    elif counted.name == "experts" and "num_experts" in plain:
        given["num_experts"] = count
    requests = [first, *islice(wanted, min(count, 128) - 1)]
    place = {"last": count - 1, "middle": count // 2}.get(first.get("place", ""), 0)
    if place < len(requests):
        requests[0], requests[place] = requests[place], requests[0]
    for want in requests:
        unit: Given = {}
        for d in space.dimensions:
            shows = (
                d.shown_by(want.get(d.name) or _label(random, d, how))
                if _is_of_unit(d, plain)
                else ()
            )
            if shows and (d.name in want or not set(shows[0]) & set(unit)):
                unit |= random.choice(shows)
        units.append(unit)
    if "seq_lens" in how.lists and "end" in {d.name for d in space.dimensions}:
        for unit, want in zip(units, requests, strict=True):
            unit["seq_lens"] = _length(random, want)
    _beside(random, how, requests, units)
    for name in sorted({name for unit in units for name in unit}):
        values = [unit[name] for unit in units if name in unit]
        given[name] = values if name in how.lists else values[:MOST_CYCLED]
    how.settle(random, given, first)
    try:
        return model.model_validate(model.settled(plain | given)).model_dump(include=set(given))
    except ValidationError:
        return drawn_call(op, random, wanted, largest)


def _is_of_unit(d: Dimension, plain: Given) -> bool:
    """Whether parameters of one unit show the classes of a dimension: their values are entries of
    lists.
    """
    names = (
        {d.param}
        if d.param
        else {name for shows in d.examples.values() for example in shows for name in example}
    )
    return any(isinstance(plain.get(name), tuple) for name in names)


def _label(random: Random, d: Dimension, how: Draws) -> str:
    return random.choices(d.classes, (how.weights or {}).get(d.name))[0]


def _nearest(random: Random, shows: Sequence[Mapping[str, Any]]) -> Given:
    """One of the parameters that show a class: more often one of the first, which are small."""
    return dict(shows[min(int(random.expovariate(0.3)), len(shows) - 1)])


def _beside(random: Random, how: Draws, requests: Sequence[Wanted], units: list[Given]) -> None:
    for b, want in enumerate(requests):
        around, neighbour = want.get("around", ""), want.get("neighbour", "")
        if how.empty and around in ("empty before", "empty both") and b:
            units[b - 1] |= how.empty
        if how.empty and around in ("empty after", "empty both") and b + 1 < len(units):
            units[b + 1] |= how.empty
        equal = neighbour == "equal" or (not neighbour and not want and random.random() < 0.2)
        if equal and b:
            same = {name: units[b][name] for name in how.lists if name in units[b]}
            if around == "live" or any(same.values()):
                units[b - 1] |= same


def _length(random: Random, want: Wanted) -> int:
    if (
        want.get("end") == "empty"
        or want.get("pages") == "none"
        or (not want and random.random() < 0.15)
    ):
        return 0
    least = {"mixed": "3-4"}.get(
        want.get("order", ""), "2" if "order" in want or want.get("shared") == "some" else "1"
    )
    labels, ends = RECORDS["pages"].classes[1:], RECORDS["end"].classes[1:]
    drawn = max(least, random.choices(labels, (4, 3, 2, 0.3))[0], key=labels.index)
    pages = random.choice(RECORDS["pages"].numbers[want.get("pages") or drawn][:4])
    end = want.get("end") or random.choice(ends)
    slots = {"first": 1, "last": PAGE_SIZE - 1, "whole": PAGE_SIZE}.get(end) or random.randint(
        2, PAGE_SIZE - 2
    )
    return (pages - 1) * PAGE_SIZE + slots
