"""The cases of `mla-harness run susceptibility`: one kernel, one site, one pattern.

No file of scenarios has them.

The kernel's declared contracts are ignored. An id such as
`susceptibility[kernel=mla_decode/tiled,kv=bf16,site=kv.tail,pattern=nan]` reproduces its case.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from harness.core.cases import Case, PoisonPlan
from harness.core.catalog import KERNELS
from harness.core.kernels import KernelSpec
from harness.core.op_params import KERNEL_PARAMS
from harness.core.ops import OPS
from harness.scenario.override import KernelOverride
from harness.scenario.point_case import seed_of

SCENARIO = "susceptibility"
# Each is compared with zeros in the same case.
PATTERNS = ("nan", "inf", "max", "random")
TOKENS_SITES = ("kv.tail", "kv.free", "kv.null")
ORACLES = ("finite", "sentinel", "reference", "non_interference")
_ID = re.compile(rf"{SCENARIO}\[kernel=([^,\]]+),")


def cases(kernels: Iterator[KernelSpec] | list[KernelSpec], *, seed: int = 0) -> list[Case]:
    """All cases of these kernels, in their order. Planners are judged through decode kernels."""
    return [
        _case(spec, kv, tokens, site, pattern, seed)
        for spec in kernels
        if spec.op in KERNEL_PARAMS and OPS.get(spec.op).reads
        for kv in (spec.kv if "kv" in KERNEL_PARAMS[spec.op].model_fields else ("",))
        for tokens in KERNEL_PARAMS[spec.op].SUSCEPTIBLE_TOKENS
        for site in (TOKENS_SITES if tokens > 1 else OPS.get(spec.op).reads)
        for pattern in PATTERNS
    ]


def selected(selector: str, override: KernelOverride | None, *, seed: int = 0) -> list[Case]:
    """All cases of the kernel of `override`, or of all kernels; the case of an id; none for any
    other selector.
    """
    if selector != SCENARIO:
        found = case_of(selector, seed=seed)
        return [found] if found else []
    ours = None if override is None else {f"{op}/{override.short_name}" for op in override.ops}
    return cases([spec for spec in KERNELS if ours is None or spec.name in ours], seed=seed)


def case_of(identity: str, *, seed: int = 0) -> Case | None:
    """The case of an id; None if it names none."""
    match = _ID.match(identity)
    own = [KERNELS.get(match[1])] if match and match[1] in KERNELS else []
    return next((case for case in cases(own, seed=seed) if case.id == identity), None)


def _case(spec: KernelSpec, kv: str, tokens: int, site: str, pattern: str, seed: int) -> Case:
    label = (f",kv={kv}" if kv else "") + (f",tokens={tokens}" if tokens > 1 else "")
    identity = f"{SCENARIO}[kernel={spec.name}{label},site={site},pattern={pattern}]"
    model = KERNEL_PARAMS[spec.op]
    given = {**model.SUSCEPTIBLE, "kernel": spec.short_name, **({"kv": kv} if kv else {})}
    if tokens > 1:
        given |= {"query_len": tokens, "seq_lens": model.SUSCEPTIBLE_TOKENS[tokens]}
    params = model.model_validate(given)
    return Case(
        id=identity,
        scenario=SCENARIO,
        system="kernel",
        tags=(SCENARIO, "kernel", spec.op),
        op=spec.op,
        params=params,
        poison=PoisonPlan(patterns=(pattern, "zeros"), sites=(site,), ignore_contracts=True),
        oracles=ORACLES,
        # One seed for all cases of an op, as they differ in the poison only.
        seed=seed_of(f"{SCENARIO}[{spec.op}]", seed),
        named=("kernel",),
    )
