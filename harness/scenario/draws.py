"""What a random case may be: hypothesis strategies for the parameters of every op and of the engine.

Only legal cases are drawn: whatever fails is the fault of the kernel or the engine, never of the draw.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NoReturn

import hypothesis.strategies as st
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis.internal.conjecture.providers import AVAILABLE_PROVIDERS, PrimitiveProvider

from harness.core.catalog import KERNELS, SITES
from harness.core.engine_params import ENGINE_KERNELS
from harness.core.ops import PAGE_SIZE
from harness.core.params import KERNEL_PARAMS

SECOND_PATTERNS = ("zeros", "max", "inf", "random")


@dataclass(frozen=True, slots=True)
class Draw:
    """One drawn case, before it has an id."""

    system: str
    op: str | None
    params: dict[str, Any]
    patterns: tuple[str, ...]
    sites: tuple[str, ...]
    strict: bool


def draw(seed: str) -> Draw:
    """The case that `seed` stands for; the same on every machine and in every process.

    Hypothesis's own provider also draws constants found in whatever modules are loaded, so a provider of our own
    feeds its strategies: one generator seeded by `seed`, no database, no shrinking, no file written.
    """
    drawn: list[Draw] = []

    @settings(
        backend=_backend(seed),
        database=None,
        deadline=None,
        max_examples=2,  # the first is always the simplest case there is
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(_cases())
    def collect(case: Draw) -> None:
        drawn.append(case)

    collect()
    return drawn[-1]


def _backend(seed: str) -> str:
    class Seeded(PrimitiveProvider):
        lifetime = "test_case"

        def __init__(self, data: Any, /) -> None:
            super().__init__(data)
            self._random = random.Random(seed)

        def draw_boolean(self, p: float = 0.5) -> bool:
            return self._random.random() < p

        def draw_integer(
            self,
            min_value: int | None = None,
            max_value: int | None = None,
            *,
            weights: dict[int, float] | None = None,
            shrink_towards: int = 0,
        ) -> int:
            assert min_value is not None and max_value is not None, "draw bounded integers only"
            return self._random.randint(min_value, max_value)

        def _unused(self, *args: Any, **kwargs: Any) -> NoReturn:
            raise NotImplementedError("cases are drawn from integers and booleans only")

        draw_float = draw_string = draw_bytes = _unused

    name = "mla-harness-seeded"
    AVAILABLE_PROVIDERS[name] = Seeded
    return name


@st.composite
def _cases(draw: Callable[..., Any]) -> Draw:
    system, op = draw(st.sampled_from([("kernel", op) for op in KERNEL_PARAMS] * 2 + [("engine", None)] * 2))
    params = draw(_engine() if op is None else _OPS[op]())
    main, other = draw(st.sampled_from([("nan", second) for second in SECOND_PATTERNS] * 3 + [("inf", "max")]))
    names = SITES.names()
    sites = names if draw(st.booleans()) else [name for name in names if draw(st.booleans())]
    return Draw(
        system=system,
        op=op,
        params=params,
        patterns=(main, other),
        sites=tuple(sites),
        strict=draw(st.booleans()),
    )


def _kernel_of(op: str) -> st.SearchStrategy[str]:
    return st.sampled_from(
        sorted(
            spec.short_name
            for spec in KERNELS
            if spec.op == op and spec.origin == "built in" and "cpu" in spec.devices and not spec.requires
        )
    )


def _lengths(largest: int, most: int, *, least: int = 0) -> st.SearchStrategy[list[int]]:
    """Lengths that like the edges of pages."""
    edges = [n for n in (0, 1, PAGE_SIZE - 1, PAGE_SIZE, PAGE_SIZE + 1, 2 * PAGE_SIZE) if least <= n <= largest]
    return st.lists(st.integers(least, largest) | st.sampled_from(edges), min_size=1, max_size=most)


_KV = st.sampled_from(["fp32", "bf16", "fp8_e4m3"])


@st.composite
def _mla_decode(draw: Callable[..., Any]) -> dict[str, Any]:
    seq_lens = draw(_lengths(300, 5))
    query_len = draw(st.sampled_from([1, 1, 1, 2]))
    live = [0 if length == 0 else max(length, query_len) for length in seq_lens]
    return {
        "kernel": draw(_kernel_of("mla_decode")),
        "kv": draw(_KV),
        "seq_lens": live if any(live) else [*live, 7],
        "query_len": query_len,
        "num_heads": draw(st.sampled_from([1, 4, 16])),
        "kv_lora_rank": draw(st.sampled_from([64, 512])),
        "qk_rope_head_dim": draw(st.sampled_from([16, 64])),
        "num_spare_blocks": draw(st.integers(1, 5)),
        "table_pad": draw(st.integers(0, 6)),
        "planned": draw(st.booleans()),
        # Every kernel that is drawn has the argument; those that have not are drawn by nobody.
        "window": draw(st.sampled_from([None, None, 1, 40, PAGE_SIZE, 100])),
    }


@st.composite
def _mla_decode_sparse(draw: Callable[..., Any]) -> dict[str, Any]:
    topk = draw(st.integers(1, 70))
    num_chosen = draw(st.lists(st.integers(0, topk), min_size=1, max_size=6))
    return {
        "kernel": draw(_kernel_of("mla_decode_sparse")),
        "kv": draw(_KV),
        "num_chosen": num_chosen if any(num_chosen) else [1, *num_chosen[1:]],
        "topk": topk,
        "num_blocks": draw(st.integers(3, 6)),
        "num_heads": draw(st.sampled_from([1, 4, 16])),
        "kv_lora_rank": draw(st.sampled_from([64, 512])),
        "qk_rope_head_dim": draw(st.sampled_from([16, 64])),
    }


@st.composite
def _context_attention(draw: Callable[..., Any]) -> dict[str, Any]:
    query_lens = draw(_lengths(40, 4, least=1))
    context_lens = [draw(st.integers(0, 200)) for _ in query_lens]
    return {
        "kernel": draw(_kernel_of("context_attention")),
        "query_lens": query_lens,
        "context_lens": context_lens if any(context_lens) else [9, *context_lens[1:]],
        "num_heads": draw(st.integers(1, 6)),
    }


@st.composite
def _merge_attn_states(draw: Callable[..., Any]) -> dict[str, Any]:
    num_tokens = draw(st.integers(1, 40))
    num_with_context = draw(st.integers(0, num_tokens))
    empty_prefix_rows = draw(st.integers(0, num_with_context))
    return {
        "kernel": draw(_kernel_of("merge_attn_states")),
        "num_tokens": num_tokens,
        "num_with_context": num_with_context,
        "empty_prefix_rows": empty_prefix_rows,
        "empty_suffix_rows": draw(st.sampled_from([0, 0, empty_prefix_rows // 2, empty_prefix_rows])),
        "padded": draw(st.sampled_from(["none", "suffix", "both"])),
        "empty_lse": draw(st.sampled_from(["-inf", "+inf"])),
        "num_heads": draw(st.integers(1, 6)),
    }


@st.composite
def _write_kv(draw: Callable[..., Any]) -> dict[str, Any]:
    num_tokens = draw(st.integers(1, 150))
    return {
        "kernel": draw(_kernel_of("write_kv")),
        "kv": draw(_KV),
        "num_tokens": num_tokens,
        "num_padded": draw(st.integers(0, num_tokens - 1)),
    }


@st.composite
def _quantize_fp8(draw: Callable[..., Any]) -> dict[str, Any]:
    num_tokens = draw(st.integers(1, 40))
    return {
        "kernel": draw(_kernel_of("quantize_fp8")),
        "num_tokens": num_tokens,
        "num_live": draw(st.integers(1, num_tokens)),
        "width": draw(st.sampled_from([64, 256, 576])),
    }


@st.composite
def _route_experts(draw: Callable[..., Any]) -> dict[str, Any]:
    num_experts = draw(st.integers(1, 64))
    num_tokens = draw(st.integers(1, 60))
    return {
        "kernel": draw(_kernel_of("route_experts")),
        "num_tokens": num_tokens,
        "num_live": draw(st.sampled_from([None, num_tokens, max(num_tokens // 2, 1)])),
        "num_experts": num_experts,
        "num_experts_per_tok": draw(st.integers(1, min(8, num_experts))),
    }


@st.composite
def _quantize_blocks(draw: Callable[..., Any]) -> dict[str, Any]:
    return {
        "kernel": draw(_kernel_of("quantize_blocks")),
        "block_format": draw(st.sampled_from(["nvfp4", "mxfp4", "mxfp8"])),
        "expert_rows": [draw(st.integers(1, 9)), *draw(st.lists(st.sampled_from([0, 1, 5, 128, 129]), max_size=4))],
        "orphan_rows": draw(st.integers(0, 40)),
        "width": draw(st.sampled_from([32, 64, 256])),
    }


@st.composite
def _engine(draw: Callable[..., Any]) -> dict[str, Any]:
    requests = draw(st.lists(st.tuples(st.integers(1, 150), st.integers(1, 5)), max_size=3))
    # The request that is admitted last decodes at least once, so that a graph is replayed and there is one to judge.
    requests.append(draw(st.tuples(st.integers(1, 150), st.integers(2, 5))))
    layers = draw(st.sampled_from(_LAYERS))
    prefix_caching = "kda" not in layers and "window" not in layers and draw(st.booleans()) and draw(st.booleans())
    if prefix_caching:
        # One prompt of more than a page, asked twice: the second time it finds that page.
        requests[-1] = (max(requests[-1][0], PAGE_SIZE + 2), requests[-1][1])
    speculative_tokens = 0 if "kda" in layers else draw(st.sampled_from([0, 0, 1, 2]))
    pages = sum(-(-(prompt + generated + speculative_tokens) // PAGE_SIZE) for prompt, generated in requests)
    kernels = {field: draw(_kernel_of(op)) for field, op in ENGINE_KERNELS.items()}
    pad_tokens, pad_keys = draw(st.sampled_from(["skip", "skip", "trash"])), draw(st.sampled_from([0, 0, 1]))
    dp_rank_tokens = draw(st.sampled_from([0, 0, 50]))
    # A scale that covers padding needs all of its rows written; nobody writes those of sparse layers.
    can_cover = bool(pad_keys) and not dp_rank_tokens and "sparse" not in layers
    return {
        **kernels,
        "layers": layers,
        "kv": draw(_KV),
        "num_experts": draw(st.sampled_from([0, 0, 4])),
        "expert_ranks": draw(st.sampled_from([1, 1, 2])),
        "context_ranks": draw(st.sampled_from([1, 1, 2, 3])),
        "dp_rank_tokens": dp_rank_tokens,
        "pad_tokens": pad_tokens,
        "pad_keys": pad_keys,
        "amax_rows": "batch" if can_cover and draw(st.booleans()) else "live",
        "quantize": draw(st.sampled_from(["none", "none", "fp8_per_tensor", "fp8_per_token", "mxfp8"])),
        "graph": draw(st.sampled_from(["none", "full"])),
        "capture": draw(st.sampled_from(["persistent", "lazy"])),
        # Each group of layers takes blocks of its own; one more per request holds a linear layer's state.
        "num_blocks": 4 + 2 * pages + 2 * len(requests) + (pad_tokens == "trash") + draw(st.integers(0, 8)),
        # A LIFO list gives a page away right after it was cached, so that no second prompt would find it.
        "free_list": "fifo" if prefix_caching else draw(st.sampled_from(["fifo", "lifo"])),
        "prefix_caching": prefix_caching,
        "epochs": 1 + prefix_caching,
        "flush": prefix_caching and draw(st.booleans()),
        "speculative_tokens": speculative_tokens,
        "window": draw(st.sampled_from([1, 20, 48, 100])),
        "window_kv": draw(_KV),
        "index_topk": draw(st.sampled_from([4, 16, 80])),
        "max_batched_tokens": draw(st.integers(16, 128)),
        "context_chunk": draw(st.sampled_from([32, 64, 128])),
        "zero_fill_output": draw(st.booleans()),
        "drafter": draw(st.booleans()),
        "dummy_steps": draw(st.booleans()),
        "requests": requests,
    }


_LAYERS = [
    ["mla"], ["mla", "mla"], ["mla", "kda"], ["kda", "mla"], ["window", "mla"], ["sparse", "mla"], ["window", "sparse"],
]  # fmt: skip

_OPS: dict[str, Callable[[], st.SearchStrategy[dict[str, Any]]]] = {
    "mla_decode": _mla_decode,
    "mla_decode_sparse": _mla_decode_sparse,
    "context_attention": _context_attention,
    "merge_attn_states": _merge_attn_states,
    "write_kv": _write_kv,
    "quantize_fp8": _quantize_fp8,
    "route_experts": _route_experts,
    "quantize_blocks": _quantize_blocks,
}
