"""Random cases: parameters of every op and of the engine, drawn from a seed. All of them are legal.

How an op's calls are drawn, the op says (:mod:`harness.core.draws`); how the engine's are, stands
here. The id of a drawn case holds its parameters (:mod:`harness.scenario.drawn`), so what is drawn
may change.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from random import Random

from pydantic import ValidationError

from harness.core.cases import PoisonPlan
from harness.core.catalog import KERNELS, SYSTEMS
from harness.core.draws import KV_TYPES, Given, coin, drawn_kernel, draws
from harness.core.ops import PAGE_SIZE
from harness.core.params import Params
from harness.core.sites import SITES
from harness.core.systems import ENGINE_KERNELS
from harness.scenario.calls import call_of_conditions

BY_CONDITIONS = 0.8
"""How often a call is drawn from conditions."""
SECOND_PATTERNS = ("zeros", "max", "inf", "random")
ALL_LAYERS = ("mla", "mla mla", "mla kda", "kda mla", "window mla", "sparse mla", "window sparse")


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn case, before it has an id."""

    system: str
    op: str | None
    params: Params
    poison: PoisonPlan


def draw(seed: str) -> Draw:
    """The case of `seed`, the same on every machine and in every process."""
    rng = Random(seed)
    op = rng.choice([*draws(), None])
    system = "kernel" if op else "engine"
    given = _call(rng, op) if op else _engine(rng)
    # One in 13 without NaN, which a comparison or a clamp swallows.
    patterns = rng.choice([("nan", second) for second in SECOND_PATTERNS] * 3 + [("inf", "max")])
    names = [site.name for site in SITES]
    sites = tuple(names if coin(rng) else [name for name in names if coin(rng)])
    poison = PoisonPlan(patterns=patterns, sites=sites, strict=coin(rng))
    params = SYSTEMS.get(system).model(op).model_validate(given)
    if op:
        params = _with_more(rng, op, params)
    return Draw(system, op, params, poison)


def _call(rng: Random, op: str) -> Given:
    """The parameters of a call of `op`: of a rare kind, from conditions, or plain."""
    how = draws()[op]
    if (rare := how.rare(rng)) is not None:
        return rare
    if how.plain is None or rng.random() < BY_CONDITIONS:
        return call_of_conditions(rng, op, drawn_kernel(rng, op))
    return how.plain(rng)


def _with_more(rng: Random, op: str, params: Params) -> Params:
    """`params` with a drawn value of each further parameter of the op, where the case stays legal
    and its kernel can run it.
    """
    kernel = KERNELS.get(f"{op}/{params.model_dump()['kernel']}")
    for name, values in draws()[op].more.items():
        given = params.model_dump() | {name: rng.choice(values)}
        # Requests with one dominating key may have equal outputs, which a replay must not have.
        if given.get("graph") == "full" and set(given["values"]) - {"plain"}:
            continue
        with contextlib.suppress(ValidationError):
            changed = type(params).model_validate(given)
            params = params if kernel.why_not_params(changed) else changed
    return params


def draw_sequence(seed: str, has_states: bool = False) -> Draw:
    """The sequence of `seed`: requests that arrive, leave, share pages and go on, in a pool that is
    hardly enough.

    With `has_states` they share the states of linear attention as well.
    """
    rng = Random(seed)
    given = _sequence(rng, has_states)
    model = SYSTEMS.get("engine").model()
    # Only legal parameters tell how many blocks they need, so they are first given enough.
    needed = model.model_validate(given | {"num_blocks": 1000}).blocks_needed  # type: ignore[attr-defined]
    params = model.model_validate(given | {"num_blocks": max(needed + 2 + rng.randint(0, 2), 4)})
    patterns = ("nan", rng.choice(SECOND_PATTERNS))
    return Draw(
        "engine",
        None,
        params,
        PoisonPlan(patterns=patterns, sites=tuple(site.name for site in SITES)),
    )


def _engine(rng: Random) -> Given:
    requests = [(rng.randint(1, 150), rng.randint(1, 5)) for _ in range(rng.randint(0, 3))]
    # The last request decodes at least once, so that a graph is replayed.
    requests.append((rng.randint(1, 150), rng.randint(2, 5)))
    layers = rng.choice(ALL_LAYERS).split()
    # `conflicts` forbids a window with shared pages. Shared states are drawn as sequences.
    prefix_caching = "kda" not in layers and "window" not in layers and rng.random() < 0.25
    if prefix_caching:
        # A prompt of more than a page, so that the second epoch finds a cached page.
        requests[-1] = (max(requests[-1][0], PAGE_SIZE + 2), requests[-1][1])
    # A state cannot be taken back when a draft is wrong.
    speculative_tokens = 0 if "kda" in layers else rng.choice([0, 0, 1, 2])
    pages = sum(
        -(-(prompt + generated + speculative_tokens) // PAGE_SIZE) for prompt, generated in requests
    )
    pad_tokens = rng.choice(["skip", "skip", "trash"])
    pad_keys = rng.choice([0, 0, 1])
    dp_rank_tokens = rng.choice([0, 0, 50])
    # A scale over padding needs written rows, and nothing writes padded rows of sparse layers.
    can_cover = bool(pad_keys) and not dp_rank_tokens and "sparse" not in layers
    return {
        **{
            field: drawn_kernel(rng, op)
            for field, op in ENGINE_KERNELS.items()
            if op not in draws() or draws()[op].plain is not None
        },
        "layers": layers,
        "kv": rng.choice(KV_TYPES),
        "num_experts": rng.choice([0, 0, 4]),
        "expert_ranks": rng.choice([1, 1, 2]),
        "context_ranks": rng.choice([1, 1, 2, 3]),
        "dp_rank_tokens": dp_rank_tokens,
        "pad_tokens": pad_tokens,
        "pad_keys": pad_keys,
        "amax_rows": "batch" if can_cover and coin(rng) else "live",
        "quantize": rng.choice(["none", "none", "fp8_per_tensor", "fp8_per_token", "mxfp8"]),
        "graph": rng.choice(["none", "full"]),
        "capture": rng.choice(["persistent", "lazy"]),
        # Each group of layers takes blocks of its own; one more per request holds a linear layer's
        # state.
        "num_blocks": (
            4 + 2 * pages + 2 * len(requests) + (pad_tokens == "trash") + rng.randint(0, 8)
        ),
        # A LIFO list reuses a page right after it was cached, so a second prompt would not find it.
        "free_list": "fifo" if prefix_caching else rng.choice(["fifo", "lifo"]),
        "prefix_caching": prefix_caching,
        "epochs": 1 + prefix_caching,
        "flush": prefix_caching and coin(rng),
        "speculative_tokens": speculative_tokens,
        "window": rng.choice([1, 20, 48, 100]),
        "window_kv": rng.choice(KV_TYPES),
        "index_topk": rng.choice([4, 16, 80]),
        "max_batched_tokens": rng.randint(16, 128),
        "context_chunk": rng.choice([32, 64, 128]),
        "zero_fill_output": coin(rng),
        "drafter": coin(rng),
        "dummy_steps": coin(rng),
        "requests": requests,
    }


def _sequence(rng: Random, has_states: bool) -> Given:
    layers = rng.choice([("mla",), ("mla",), ("sparse", "mla"), ("kda", "mla"), ("window", "mla")])
    layers = rng.choice([("kda", "mla"), ("mla", "kda"), ("kda",)]) if has_states else layers
    can_share = has_states or ("kda" not in layers and "window" not in layers)
    drafts = 0 if "kda" in layers else rng.choice([0, 0, 1, 2, 3])
    count = rng.randint(2, 6)
    graph = rng.choice(["none"] * 11 + ["full"])
    # Lengths about the ends of the first two pages: there blocks are taken, cached and given back.
    short = range(1, 2 * drafts + 3)
    edge = range(PAGE_SIZE - 6, PAGE_SIZE + 2)
    long = range(2 * PAGE_SIZE - 4, 2 * PAGE_SIZE + 20)
    # Few tokens in a step make many steps: then prompts are short.
    is_tight = rng.random() < 0.2
    budgets, kinds = (
        ([1, 2, 5], [short]) if is_tight else ([24, 48, 100, 300], [short, edge, edge, long])
    )
    chains = [rng.choice(["_", "a", "ab", "b", "ba", "aa", "abc"]) for _ in range(count)]
    # A prompt can only go on with the answer of a request before it.
    for later in range(1, count):
        if rng.random() < 0.2:
            chains[later] = f"{rng.randrange(later)}+"
    given: Given = {
        "layers": layers,
        "kv": rng.choice(["fp32", "fp32", "bf16"]),
        "graph": graph,
        "capture_sizes": [2, 4],
        "free_list": rng.choice(["fifo", "lifo"]),
        "prefix_caching": can_share and rng.random() < 0.8,
        "num_hashes": rng.choice([None, None, 1, 2, 5]),
        "flush": can_share and rng.random() < 0.1,
        "speculative_tokens": drafts,
        "window": rng.choice([1, 20, PAGE_SIZE]),
        # A request verifies its drafts and one more token in one step.
        "max_batched_tokens": drafts + rng.choice(budgets),
        "max_num_seqs": rng.randint(1, 4),
        # Each request decodes, so that a graph is replayed.
        "requests": [(rng.choice(rng.choice(kinds)), rng.randint(2, 8)) for _ in range(count)],
        "chains": chains,
        "arrivals": sorted(rng.choice([0, 0, 1, 2, 3, 5, 8, 12]) for _ in range(count)),
        # The first request is never aborted, so that there is something to judge.
        "aborts": [
            (rng.randint(1, count - 1), rng.randint(0, 14))
            for _ in range(rng.choice([0, 0, 0, 1, 2]))
        ],
    }
    return given | changes_between(rng, given)


def changes_between(rng: Random, given: Given) -> Given:
    """State changes for one in three drawn sequences, before its second epoch or while its requests
    run, one behind the other.

    After a flush some answers have no engine to be compared with, so such sequences get none.
    """
    if given["flush"] or rng.random() < 0.67:
        return {}
    kinds = ["reload", "reload_new", "sleep"]
    more: Given = {"epochs": 2}
    own = rng.choice(["move_experts", "switch_adapter", "switch_adapter", "none"])
    if own == "move_experts":
        kinds += [own] * 2
        more |= {"num_experts": 4, "expert_ranks": rng.choice([1, 2])}
    elif own == "switch_adapter" and set(given["layers"]) == {"mla"}:
        kinds += [own] * 2
        # A switch is of the adapter in slot 1, so one request must use it.
        more["adapters"] = [1, *(rng.randint(0, 2) for _ in given["requests"][1:])]
    first = given["arrivals"][0]
    # The first change before any request runs, or while the first one does.
    at = rng.choice([0, first + 1])
    changes = []
    for _ in range(rng.randint(1, 4)):
        changes.append((rng.choice(kinds), at))
        # Between two changes the requests that start over get some way, or not.
        at = max(at, first) + rng.choice([0, 1, 2, 3]) if at or coin(rng) else 0
    last = changes[-1][1]
    # The first request runs until the last change, which would not happen otherwise.
    prompt, count = given["requests"][0]
    least = (last - first + 1) * (1 + given["speculative_tokens"]) + 1
    # The last request arrives after the changes, so that a cold engine can answer it as well.
    final = len(given["requests"]) - 1
    return more | {
        "changes": changes,
        "requests": [(prompt, max(count, least)), *given["requests"][1:]],
        "arrivals": [*given["arrivals"][:-1], max(given["arrivals"][-1], last)],
        "aborts": [entry for entry in given["aborts"] if entry[0] != final],
    }
