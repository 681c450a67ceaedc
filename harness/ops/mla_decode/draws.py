"""The draws of random calls of `mla_decode`. No torch here.

A batch of many unlike requests shows many combinations for the price of one call. A draw from
conditions gets the combinations that it shall show, and gives them to the call and to its requests
where they go together.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import islice
from random import Random
from typing import get_args

from harness.core.conditions.parts import TILE
from harness.core.conditions.table import SPACES
from harness.core.draws import KV_TYPES, Draws, Given, Wanted, coin, drawn_kernel, drawn_lengths
from harness.core.ops import PAGE_SIZE
from harness.core.shapes import CacheLayout

SPACE = SPACES["mla_decode"]


def _plain(rng: Random) -> Given:
    query_len = rng.choice([1, 1, 1, 2])
    seq_lens = [
        # The query tokens are part of a request's length. A padded request has none.
        0 if length == 0 else max(length, query_len)
        for length in drawn_lengths(rng, 0, 300, most=5)
    ]
    return {
        "kernel": drawn_kernel(rng, "mla_decode"),
        "kv": rng.choice(KV_TYPES),
        "seq_lens": seq_lens if any(seq_lens) else [*seq_lens, 7],
        "query_len": query_len,
        "num_heads": rng.choice([1, 4, 16]),
        "kv_lora_rank": rng.choice([64, 512]),
        "qk_rope_head_dim": rng.choice([16, 64]),
        "num_spare_blocks": rng.randint(1, 5),
        "table_pad": rng.randint(0, 6),
        "planned": coin(rng),
        # Every kernel that is drawn has the argument.
        "window": rng.choice([None, None, 1, 40, PAGE_SIZE, 100]),
    }


def _limited(given: Given) -> Given:
    """The calls of each run have pools of many blocks: these are slow."""
    return given | {"high_blocks": min(given["high_blocks"], 130)}


def decode_call(random: Random, wanted: Iterator[Wanted], largest: int) -> Given:
    """The parameters of a call of `mla_decode`, with a batch of at most `largest` requests.

    The first of `wanted` decides what all requests share, and each request takes one that goes with
    that.
    """
    first = next(wanted)

    def chosen(name: str, weights: Sequence[int] | None = None) -> str:
        return first.get(name) or random.choices(SPACE[name].classes, weights)[0]

    def number(name: str, most: int, weights: Sequence[int] | None = None) -> int:
        numbers = SPACE[name].numbers[chosen(name, weights)]
        return random.choice(numbers[: max(most - numbers.start, 1)])

    tokens = number("tokens", 12, (6, 4, 3, 2, 1))
    alone = first.get("place") == "only"
    batch = 1 if alone else number("batch", largest, (1, 4, 6, 3, 1))
    if (
        not alone
        and "batch" not in first
        and any(name in first for name in ("neighbour", "around", "shared", "place"))
    ):
        # These conditions are about the requests beside one, so a batch of two shows few of them.
        batch = max(batch, 5)
    heads = number("heads", 130, (3, 4, 4, 3, 2, 2))
    block = chosen("block", (6, 3, 0 if first.get("latent") == "512+64" else 1))
    # So many blocks of 576 elements would be gigabytes.
    latent = "other" if block == "32768+" else chosen("latent", (12, 1))
    far = chosen("offset", (5, 1)) == "past 2^31"
    apart = far or chosen("pool", (3, 2)) == "apart"
    requests = [first, *islice(wanted, batch - 1)]
    if first.get("place") in ("middle", "last") and batch > 1:
        place = batch - 1 if first["place"] == "last" else batch // 2
        requests[0], requests[place] = requests[place], requests[0]
    lengths = _lengths(random, requests, tokens, (2 if batch > 16 else 4) if heads < 100 else 2)
    if first.get("spare") == "none":
        pages = SPACE["pages"].numbers[first.get("pages", "2")].start
        lengths = [min(n, pages * PAGE_SIZE) for n in lengths]
    if not any(lengths):
        lengths[-1] = PAGE_SIZE + tokens
    page_orders = [_page_order(random, want) for want in requests]
    values = [
        (want.get("values") or random.choice(SPACE["values"].classes)).replace(" ", "_")
        for want in requests
    ]
    window = {"none": None, "one": 1, "inside": random.choice((2, 40, 64, 100)), "past": 4096}
    given: Given = {
        "seq_lens": lengths,
        "query_len": tokens,
        "num_heads": heads,
        "kv": chosen("kv"),
        "page_order": page_orders[:17],
        "values": values[:13],
        "table_pad": random.choice(SPACE["spare"].numbers[chosen("spare")][:12]),
        "planned": chosen("plan") == "given",
        "contiguous_q": chosen("q") == "packed",
        "num_spare_blocks": random.choice((1, 2, 4)),
        "high_blocks": {"below 128": 0, "below 32768": 120, "32768+": 32768}[block],
    }
    if (seen := window[chosen("window", (4, 1, 1, 1))]) is not None:
        given["window"] = seen
    if latent == "other":
        given |= {"kv_lora_rank": 8 if block == "32768+" else 16, "qk_rope_head_dim": 8}
    return given | _gaps(random, block, far=far, apart=apart)


def _page_order(random: Random, want: Wanted) -> str:
    """How the pages of a request lie in the pool, and with whom it shares them."""
    shared = {"some": "prefix", "all": "same"}.get(want.get("shared", ""))
    order = want.get("order", "")
    if shared or order:
        return shared or ("random" if order == "mixed" else order)
    return random.choice(("random", "rising", "falling", "repeated", "prefix", "same"))


def _gaps(random: Random, block: str, *, far: bool, apart: bool) -> Given:
    """What lies between the pages of a pool whose block numbers are of class `block`.

    `far`: a page starts past 2^31 elements. `apart`: pages do not touch each other.
    """
    if far:
        # The more blocks, the smaller the stride: a page lies past 2^31 elements, and the pool
        # still finds address space.
        strides = {"32768+": 2**16 + 64, "below 32768": 2**25 + 64, "below 128": 2**31}
        return {"page_stride": strides[block]}
    if apart and block == "32768+":
        return {"page_stride": PAGE_SIZE * 16 + 64}
    if apart:
        return {"layout": random.choice(("padded_pages", "block_major", "manager_blocks"))}
    return {}


def _lengths(random: Random, requests: Sequence[Wanted], tokens: int, more: int) -> list[int]:
    """The length of each request: as it wants, or few pages, with a long one now and then."""
    found: list[int] = []
    for b, want in enumerate(requests):
        before = found[-1] if found else -1
        if want.get("around", "live") in ("empty before", "empty both") and found:
            # This request wants an empty one in front of it.
            found[-1] = before = 0
        if b and requests[b - 1].get("around") in ("empty after", "empty both"):
            # The request in front wants an empty one behind it.
            found.append(0)
            continue
        equal = (
            want.get("neighbour", random.choice(("equal", "other", "other", "other"))) == "equal"
        )
        if equal and before >= 0 and not {"end", "pages"} & set(want):
            found.append(before)
            continue
        length = _length(random, want, tokens, more)
        if equal and b and (length == 0) == (before == 0):
            found[-1] = length
        found.append(length)
    return found


def _length(random: Random, want: Wanted, tokens: int, more: int) -> int:
    needs_keys = {"values", "order", "shared", "block", "offset"} & set(want)
    if want.get("end") == "empty" or want.get("pages") == "none":
        return 0
    if not want and random.random() < 0.12:
        return 0
    # An order shows in two pages, and a mixed one in three.
    least = {"mixed": "3-4", "rising": "2", "falling": "2", "repeated": "2"}.get(
        want.get("order", ""), "1"
    )
    labels = ("1", "2", "3-4", "5-8", "9-32", "33+")
    drawn = random.choices(labels, (6, 6, 4, more // 2, 0.1 * more, 0.03 * more))[0]
    label = want.get("pages") or max(least, drawn, key=labels.index)
    if want.get("shared") == "some" and label == "1":
        label = "2"
    pages = random.choice(SPACE["pages"].numbers[label][: 3 if label == "33+" else 6])
    end = want.get("end") or random.choice(SPACE["end"].classes[1:])
    slots = {"first": 1, "last": PAGE_SIZE - 1, "whole": PAGE_SIZE}.get(end)
    if slots is None:
        slots = random.choice(
            [n for n in range(12, PAGE_SIZE - 1) if (n % TILE == 0) == (end == "tile")]
        )
    length = (pages - 1) * PAGE_SIZE + slots
    return max(length, tokens) if needs_keys or length else length


DRAWS = Draws(
    place=0,
    plain=_plain,
    call=decode_call,
    most_units=100,
    limited=_limited,
    more={
        "layout": get_args(CacheLayout),
        "table_entries": ("filled", "filled", "zero", "out_of_range"),
        "contiguous_q": (True, False),
        "graph": ("none", "none", "full"),
        "launches": (1, 1, 3),
        "page_size": (64, 64, 16, 32, 128),
    },
)
