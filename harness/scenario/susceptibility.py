"""The cases of `susceptibility`: one kernel, one site, one pattern, with the kernel's declared contracts set aside.

A case id such as `susceptibility[kernel=mla_decode/tiled,kv=bf16,site=kv.tail,pattern=nan]` says all of it, so that
`mla-harness run ID` makes the same case again without any file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from harness.core.cases import Case, PoisonPlan
from harness.core.catalog import KERNELS
from harness.core.kernel_spec import KernelSpec
from harness.core.params import KERNEL_PARAMS
from harness.scenario.make_case import seed_of

SCENARIO = "susceptibility"
PATTERNS = ("nan", "inf", "max", "random")
SITES: dict[str, tuple[str, ...]] = {
    "mla_decode": ("output", "lse", "workspace", "kv.tail", "kv.free", "kv.null", "block_table.pad"),
    "mla_decode_sparse": ("output", "lse", "workspace", "kv.free", "kv.null"),
    "context_attention": ("output", "lse", "workspace"),
    "merge_attn_states": ("output", "lse", "context.output", "context.lse"),
    "write_kv": ("kv.free", "kv.null", "graph.pad_rows"),
    "quantize_fp8": ("output", "workspace", "scale.pad"),
    "route_experts": ("router.ids", "router.weights", "workspace"),
    "quantize_blocks": ("output", "scale.blocks", "scale.pad", "workspace"),
}
"""Memory that each op could read although nobody wrote it."""
OUTPUT_SITES = {"context_attention": {"output": "context.output", "lse": "context.lse"}}
"""What an op's outputs are called in the table of sites, where it is not `output` and `lse`."""
PARAMS: dict[str, dict[str, Any]] = {
    "mla_decode": {"seq_lens": (1, 63, 64, 65, 130, 0)},
    "merge_attn_states": {"empty_prefix_rows": 2},
}
TOKENS: dict[int, tuple[int, ...]] = {1: (), 4: (4, 63, 64, 67, 130, 0), 64: (64, 65, 100, 127, 130, 0)}
"""Query tokens a request of each probe of decode, and its lengths where they are not those of PARAMS: 4 as in
speculative decoding, 64 as in prompts that some backends hand to a decode kernel, which may then load pages whole."""
TOKENS_SITES = ("kv.tail", "kv.free", "kv.null")
ORACLES = ("finite", "sentinel", "reference", "non_interference")
_ID = re.compile(rf"^{SCENARIO}\[kernel=([^,\]]+)(?:,kv=(\w+))?(?:,tokens=(\d+))?,site=([\w.]+),pattern=(\w+)\]$")


def cases(kernels: Iterator[KernelSpec] | list[KernelSpec], *, seed: int = 0) -> list[Case]:
    """Every cell of the matrix for these kernels, in their order; planners are judged through their decode."""
    return [
        _case(spec, kv, tokens, site, pattern, seed)
        for spec in kernels
        if spec.op in SITES
        for kv in _kv_types(spec)
        for tokens in (TOKENS if spec.op == "mla_decode" else (1,))
        for site in _sites(spec.op, tokens)
        for pattern in PATTERNS
    ]


def case_of(identity: str, *, seed: int = 0) -> Case | None:
    """The case that an id names, or None when it names no cell."""
    match = _ID.match(identity)
    if match is None or match[1] not in KERNELS:
        return None
    spec = KERNELS.get(match[1])
    kv = match[2] or ""
    tokens, site, pattern = int(match[3] or 1), match[4], match[5]
    if tokens not in TOKENS or (tokens > 1 and spec.op != "mla_decode"):
        return None
    if spec.op not in SITES or kv not in _kv_types(spec) or site not in _sites(spec.op, tokens):
        return None
    return _case(spec, kv, tokens, site, pattern, seed) if pattern in PATTERNS else None


def declared(spec: KernelSpec, site: str) -> bool:
    """Whether the kernel says itself that it needs this memory to be friendly."""
    return (spec.needs_finite_tail and site in ("kv.tail", "kv.free", "kv.null")) or (
        spec.needs_valid_table and site == "block_table.pad"
    )


def _sites(op: str, tokens: int = 1) -> tuple[str, ...]:
    if tokens > 1:
        return TOKENS_SITES
    names = OUTPUT_SITES.get(op, {})
    return tuple(names.get(site, site) for site in SITES[op])


def _kv_types(spec: KernelSpec) -> tuple[str, ...]:
    return spec.kv if "kv" in KERNEL_PARAMS[spec.op].model_fields else ("",)


def _case(spec: KernelSpec, kv: str, tokens: int, site: str, pattern: str, seed: int) -> Case:
    label = (f",kv={kv}" if kv else "") + (f",tokens={tokens}" if tokens > 1 else "")
    identity = f"{SCENARIO}[kernel={spec.name}{label},site={site},pattern={pattern}]"
    given = {**PARAMS.get(spec.op, {}), "kernel": spec.short_name, **({"kv": kv} if kv else {})}
    if tokens > 1:
        given |= {"query_len": tokens, "seq_lens": TOKENS[tokens]}
    params = KERNEL_PARAMS[spec.op].model_validate(given)
    return Case(
        id=identity,
        scenario=SCENARIO,
        system="kernel",
        tags=(SCENARIO, "kernel", spec.op),
        op=spec.op,
        params=params,
        poison=PoisonPlan(patterns=(pattern, "zeros"), sites=(site,), ignore_contracts=True),
        oracles=ORACLES,
        # One seed for all cells of a kernel: they differ in the poison alone.
        seed=seed_of(f"{SCENARIO}[{spec.op}]", seed),
    )
