"""Random cases: parameters of every op and of the engine, drawn from a seed. All of them are legal.

Most calls are drawn from triples of the conditions of their op, some with the 2,048 slots of a
DeepSeek V3.2. The id of a drawn case holds its parameters (:mod:`harness.scenario.drawn`), so what
is drawn may change.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, get_args

from pydantic import ValidationError

from harness.core.call_words import RecordFormat
from harness.core.cases import PoisonPlan
from harness.core.catalog import KERNELS, SYSTEMS
from harness.core.ops import PAGE_SIZE
from harness.core.params import FlatLayout, Params
from harness.core.shapes import CacheLayout
from harness.core.sites import SITES
from harness.core.systems import ENGINE_KERNELS
from harness.scenario.calls import call_of_conditions

Given = dict[str, Any]

BY_CONDITIONS = 0.8
"""How often a call is drawn from conditions."""
WIDEST = 2048
"""The slots of a token in DeepSeek V3.2."""
WIDE = 0.05
"""How often a call of `mla_decode_sparse` has so many."""
SECOND_PATTERNS = ("zeros", "max", "inf", "random")
KV_TYPES = ("fp32", "bf16", "fp8_e4m3")
PACKED = {"kv": "fp8_ds_mla", "kv_lora_rank": 512, "qk_rope_head_dim": 64}
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
    op = rng.choice([*_OPS, *_BY_CONDITIONS_ALONE, None])
    system = "kernel" if op else "engine"
    if op == "mla_decode_sparse" and rng.random() < WIDE:
        given = _wide_decode_sparse(rng)
    elif op and (op in _BY_CONDITIONS_ALONE or rng.random() < BY_CONDITIONS):
        given = call_of_conditions(rng, op, _kernel(rng, op))
    else:
        given = _OPS[op](rng) if op else _engine(rng)
    patterns = rng.choice([("nan", second) for second in SECOND_PATTERNS] * 3 + [("inf", "max")])
    names = [site.name for site in SITES]
    sites = tuple(names if _coin(rng) else [name for name in names if _coin(rng)])
    poison = PoisonPlan(patterns=patterns, sites=sites, strict=_coin(rng))
    params = SYSTEMS.get(system).model(op).model_validate(given)
    if op:
        params = _with_more(rng, op, params)
    return Draw(system, op, params, poison)


def _with_more(rng: Random, op: str, params: Params) -> Params:
    """`params` with a drawn value of each parameter of MORE, where the case stays legal and its
    kernel can run it.
    """
    kernel = KERNELS.get(f"{op}/{params.model_dump()['kernel']}")
    for name, values in MORE.get(op, {}).items():
        given = params.model_dump() | {name: rng.choice(values)}
        if given.get("graph") == "full" and set(given["values"]) - {"plain"}:
            continue  # Requests with one dominating key may have equal outputs, which a replay must not have.  # noqa: E501
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
    needed = model.model_validate(given | {"num_blocks": 1000}).blocks_needed  # type: ignore[attr-defined]
    params = model.model_validate(given | {"num_blocks": max(needed + 2 + rng.randint(0, 2), 4)})
    patterns = ("nan", rng.choice(SECOND_PATTERNS))
    return Draw(
        "engine",
        None,
        params,
        PoisonPlan(patterns=patterns, sites=tuple(site.name for site in SITES)),
    )


def _mla_decode(rng: Random) -> Given:
    query_len = rng.choice([1, 1, 1, 2])
    seq_lens = [
        0 if length == 0 else max(length, query_len) for length in _lengths(rng, 0, 300, most=5)
    ]
    return {
        "kernel": _kernel(rng, "mla_decode"),
        "kv": rng.choice(KV_TYPES),
        "seq_lens": seq_lens if any(seq_lens) else [*seq_lens, 7],
        "query_len": query_len,
        "num_heads": rng.choice([1, 4, 16]),
        "kv_lora_rank": rng.choice([64, 512]),
        "qk_rope_head_dim": rng.choice([16, 64]),
        "num_spare_blocks": rng.randint(1, 5),
        "table_pad": rng.randint(0, 6),
        "planned": _coin(rng),
        # Every kernel that is drawn has the argument.
        "window": rng.choice([None, None, 1, 40, PAGE_SIZE, 100]),
    }


def _mla_decode_sparse(rng: Random) -> Given:
    topk = rng.randint(1, 70)
    num_chosen = [rng.randint(0, topk) for _ in range(rng.randint(1, 6))]
    return {
        "kernel": _kernel(rng, "mla_decode_sparse"),
        "kv": rng.choice(KV_TYPES),
        "num_chosen": num_chosen if any(num_chosen) else [1, *num_chosen[1:]],
        "topk": topk,
        "num_blocks": rng.randint(3, 6),
        "num_heads": rng.choice([1, 4, 16]),
        "kv_lora_rank": rng.choice([64, 512]),
        "qk_rope_head_dim": rng.choice([16, 64]),
    }


def _wide_decode_sparse(rng: Random) -> Given:
    """A token or more chooses WIDEST slots. Block 0 has no owner, so 33 blocks have as many."""
    num_chosen = [
        WIDEST,
        *rng.choices([0, 1, WIDEST - 1, WIDEST, rng.randint(2, WIDEST)], k=rng.randint(0, 2)),
    ]
    rng.shuffle(num_chosen)
    given = {"num_chosen": num_chosen, "topk": WIDEST, "num_blocks": rng.randint(33, 64)}
    return _mla_decode_sparse(rng) | given | (PACKED if _coin(rng) else {})


def _context_attention(rng: Random) -> Given:
    query_lens = _lengths(rng, 1, 40, most=4)
    context_lens = [rng.randint(0, 200) for _ in query_lens]
    return {
        "kernel": _kernel(rng, "context_attention"),
        "query_lens": query_lens,
        "context_lens": context_lens if any(context_lens) else [9, *context_lens[1:]],
        "num_heads": rng.randint(1, 6),
    }


def _merge_attn_states(rng: Random) -> Given:
    num_tokens = rng.randint(1, 40)
    num_with_context = rng.randint(0, num_tokens)
    empty_prefix_rows = rng.randint(0, num_with_context)
    return {
        "kernel": _kernel(rng, "merge_attn_states"),
        "num_tokens": num_tokens,
        "num_with_context": num_with_context,
        "empty_prefix_rows": empty_prefix_rows,
        "empty_suffix_rows": rng.choice([0, 0, empty_prefix_rows // 2, empty_prefix_rows]),
        "padded": rng.choice(["none", "suffix", "both"]),
        "empty_lse": rng.choice(["-inf", "+inf"]),
        "num_heads": rng.randint(1, 6),
    }


def _write_kv(rng: Random) -> Given:
    num_tokens = rng.randint(1, 150)
    return {
        "kernel": _kernel(rng, "write_kv"),
        "kv": rng.choice(KV_TYPES),
        "num_tokens": num_tokens,
        "num_padded": rng.randint(0, num_tokens - 1),
    }


def _quantize_fp8(rng: Random) -> Given:
    num_tokens = rng.randint(1, 40)
    return {
        "kernel": _kernel(rng, "quantize_fp8"),
        "num_tokens": num_tokens,
        "num_live": rng.randint(1, num_tokens),
        "width": rng.choice([64, 256, 576]),
    }


def _route_experts(rng: Random) -> Given:
    num_experts, num_tokens = rng.randint(1, 64), rng.randint(1, 60)
    return {
        "kernel": _kernel(rng, "route_experts"),
        "num_tokens": num_tokens,
        "num_live": rng.choice([None, num_tokens, max(num_tokens // 2, 1)]),
        "num_experts": num_experts,
        "num_experts_per_tok": rng.randint(1, min(8, num_experts)),
    }


def _quantize_blocks(rng: Random) -> Given:
    return {
        "kernel": _kernel(rng, "quantize_blocks"),
        "block_format": rng.choice(["nvfp4", "mxfp4", "mxfp8"]),
        "expert_rows": [
            rng.randint(1, 9),
            *(rng.choice([0, 1, 5, 128, 129]) for _ in range(rng.randint(0, 4))),
        ],
        "orphan_rows": rng.randint(0, 40),
        "width": rng.choice([32, 64, 256]),
    }


def _align_experts(rng: Random) -> Given:
    num_experts = rng.randint(1, 64)
    num_used = rng.randint(1, num_experts)
    return {
        "kernel": _kernel(rng, "align_experts"),
        "num_tokens": rng.randint(1, 60),
        "num_experts": num_experts,
        "num_used": num_used,
        "num_experts_per_tok": rng.randint(1, min(8, num_used)),
        "block_size": rng.choice([1, 4, 16, 64]),
    }


def _write_records(rng: Random) -> Given:
    return {
        "kernel": _kernel(rng, "write_records"),
        "kv": rng.choice(get_args(RecordFormat)),
        "layers": rng.choice([1, 1, 2, 3]),
        "num_tokens": rng.choice([1, PAGE_SIZE, rng.randint(1, 150)]),
        "num_padded": rng.randint(0, 9),
    }


def _read_records(rng: Random) -> Given:
    seq_lens = _lengths(rng, 0, 150, most=5)
    return {
        "kernel": _kernel(rng, "read_records"),
        "kv": rng.choice(get_args(RecordFormat)),
        "layers": rng.choice([1, 1, 2, 3]),
        "seq_lens": seq_lens if any(seq_lens) else [*seq_lens, 7],
    }


def _engine(rng: Random) -> Given:
    requests = [(rng.randint(1, 150), rng.randint(1, 5)) for _ in range(rng.randint(0, 3))]
    # The last request decodes at least once, so that a graph is replayed.
    requests.append((rng.randint(1, 150), rng.randint(2, 5)))
    layers = rng.choice(ALL_LAYERS).split()
    prefix_caching = "kda" not in layers and "window" not in layers and rng.random() < 0.25
    if prefix_caching:
        # A prompt of more than a page, so that the second epoch finds a cached page.
        requests[-1] = (max(requests[-1][0], PAGE_SIZE + 2), requests[-1][1])
    speculative_tokens = 0 if "kda" in layers else rng.choice([0, 0, 1, 2])
    pages = sum(
        -(-(prompt + generated + speculative_tokens) // PAGE_SIZE) for prompt, generated in requests
    )
    pad_tokens, pad_keys = rng.choice(["skip", "skip", "trash"]), rng.choice([0, 0, 1])
    dp_rank_tokens = rng.choice([0, 0, 50])
    # A scale over padding needs written rows, and nothing writes padded rows of sparse layers.
    can_cover = bool(pad_keys) and not dp_rank_tokens and "sparse" not in layers
    return {
        **{
            field: _kernel(rng, op)
            for field, op in ENGINE_KERNELS.items()
            if op in _OPS or "plan" in op
        },
        "layers": layers,
        "kv": rng.choice(KV_TYPES),
        "num_experts": rng.choice([0, 0, 4]),
        "expert_ranks": rng.choice([1, 1, 2]),
        "context_ranks": rng.choice([1, 1, 2, 3]),
        "dp_rank_tokens": dp_rank_tokens,
        "pad_tokens": pad_tokens,
        "pad_keys": pad_keys,
        "amax_rows": "batch" if can_cover and _coin(rng) else "live",
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
        "flush": prefix_caching and _coin(rng),
        "speculative_tokens": speculative_tokens,
        "window": rng.choice([1, 20, 48, 100]),
        "window_kv": rng.choice(KV_TYPES),
        "index_topk": rng.choice([4, 16, 80]),
        "max_batched_tokens": rng.randint(16, 128),
        "context_chunk": rng.choice([32, 64, 128]),
        "zero_fill_output": _coin(rng),
        "drafter": _coin(rng),
        "dummy_steps": _coin(rng),
        "requests": requests,
    }


def _sequence(rng: Random, has_states: bool) -> Given:
    layers = rng.choice([("mla",), ("mla",), ("sparse", "mla"), ("kda", "mla"), ("window", "mla")])
    layers = rng.choice([("kda", "mla"), ("mla", "kda"), ("kda",)]) if has_states else layers
    can_share = has_states or ("kda" not in layers and "window" not in layers)
    drafts = 0 if "kda" in layers else rng.choice([0, 0, 1, 2, 3])
    count, graph = rng.randint(2, 6), rng.choice(["none"] * 11 + ["full"])
    short, edge = range(1, 2 * drafts + 3), range(PAGE_SIZE - 6, PAGE_SIZE + 2)
    long = range(2 * PAGE_SIZE - 4, 2 * PAGE_SIZE + 20)
    # Few tokens in a step make many steps: then prompts are short.
    is_tight = rng.random() < 0.2
    budgets, kinds = (
        ([1, 2, 5], [short]) if is_tight else ([24, 48, 100, 300], [short, edge, edge, long])
    )
    chains = [rng.choice(["_", "a", "ab", "b", "ba", "aa", "abc"]) for _ in range(count)]
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
    given |= changes_between(rng, given)
    if has_states and given.get("changes"):
        # The last request arrives after the changes, so that a cold engine can answer it as well.
        given["arrivals"][-1] = max(given["arrivals"][-1], given["changes"][-1][1])
    return given


def changes_between(rng: Random, given: Given) -> Given:
    """State changes for one in three drawn sequences, before its second epoch or while its requests
    run.

    After an abort or a flush some answers have no engine to be compared with, so such sequences get
    none.
    """
    if given["aborts"] or given["flush"] or rng.random() < 0.67:
        return {}
    kinds = ["reload", "reload_new", "sleep"] + (
        ["switch_adapter"] * 2 if set(given["layers"]) == {"mla"} else []
    )
    # A request of one token may end in the step of its arrival. Of layers that choose, only the
    # last choice is kept.
    can_run = given["requests"][0][1] > 1 and "sparse" not in given["layers"]
    steps = [0, 0, given["arrivals"][0] + 1 if can_run else 0]
    changes = [(rng.choice(kinds), rng.choice(steps)) for _ in range(rng.randint(1, 2))]
    slots = [1, *(rng.randint(0, 2) for _ in given["requests"][1:])]
    adapters = {"adapters": slots} if any(kind == "switch_adapter" for kind, _ in changes) else {}
    return {"epochs": 2, "changes": sorted(changes, key=lambda change: change[1]), **adapters}


def _by_op(*draws: Callable[[Random], Given]) -> dict[str, Callable[[Random], Given]]:
    return {draw.__name__.removeprefix("_"): draw for draw in draws}


_OPS = _by_op(_mla_decode, _mla_decode_sparse, _context_attention, _merge_attn_states, _write_kv)
_OPS |= _by_op(_quantize_fp8, _route_experts, _quantize_blocks)
_OPS |= _by_op(_align_experts, _write_records, _read_records)
"""Op -> the function that draws its parameters."""
_BY_CONDITIONS_ALONE = ("index_logits", "select_topk", "map_indices")
"""Ops that are always drawn from conditions."""
MORE: dict[str, dict[str, list[Any]]] = {
    "mla_decode": {
        "layout": list(get_args(CacheLayout)),
        "table_entries": ["filled", "filled", "zero", "out_of_range"],
        "contiguous_q": [True, False],
        "graph": ["none", "none", "full"],
        "launches": [1, 1, 3],
    },
    "mla_decode_sparse": {"layout": list(get_args(FlatLayout))},
    "merge_attn_states": {"lse_gap": [0, 0, 1, 200]},
    "write_kv": {"layout": list(get_args(FlatLayout)), "large_rows": [0, 0, 1]},
    **{op: {"zero_rows": [0, 0, 1]} for op in ("quantize_fp8", "quantize_blocks")},
}
"""Op -> parameters that are drawn as well, and their values."""


def _coin(rng: Random) -> bool:
    return rng.random() < 0.5


def _kernel(rng: Random, op: str) -> str:
    """A built-in kernel of `op` that runs on a CPU without further packages."""
    own = (spec for spec in KERNELS if spec.op == op and spec.origin == "built in")
    return rng.choice(
        sorted(spec.short_name for spec in own if "cpu" in spec.devices and not spec.requires)
    )


def _lengths(rng: Random, least: int, largest: int, *, most: int) -> list[int]:
    """One to `most` lengths. On average, every second one is at the edge of a page."""
    edges = [
        n
        for n in (0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE)
        if least <= n <= largest
    ]
    return [
        rng.choice(edges) if _coin(rng) else rng.randint(least, largest)
        for _ in range(rng.randint(1, most))
    ]
