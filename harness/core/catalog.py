"""The registries, one for each kind of thing, with the rows of the harness and of every engine.

No torch here.

Rows name their code as "module:name", which is imported when it is first used.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Protocol, TypeVar

from harness.core import checkout, faults, kernels, sites, systems
from harness.core.engine_tables import (
    load_tables,
    missing_engine,
    missing_fault,
    missing_kernel,
    missing_system,
)
from harness.core.faults import FaultSpec
from harness.core.kernels import BUILT_IN, KernelSpec
from harness.core.ops import OPS
from harness.core.oracles import LAST, OracleSpec, own_oracles
from harness.core.registry import Registry
from harness.core.sites import Site
from harness.core.systems import EngineSpec, ModelSpec, SystemSpec

__all__ = ["BROKEN", "ENGINES", "FAULTS", "KERNELS", "MODELS", "ORACLES", "SITES", "SYSTEMS"]

_ROWS, BROKEN = load_tables(
    {
        "SYSTEMS": systems.SYSTEMS,
        "MODELS": systems.MODELS,
        "SITES": sites.SITES,
        "KERNELS": kernels.KERNELS,
        "ORACLES": own_oracles(),
        "FAULTS": faults.FAULTS,
    }
)


ENGINES: Registry[EngineSpec] = Registry(
    "engine", _ROWS["ENGINES"], lambda name: missing_engine(name, BROKEN)
)
SYSTEMS: Registry[SystemSpec] = Registry(
    "system", _ROWS["SYSTEMS"], lambda name: missing_system(name, BROKEN)
)
MODELS: Registry[ModelSpec] = Registry("kind of model", _ROWS["MODELS"])
SITES: Registry[Site] = Registry("site", _ROWS["SITES"])
KERNELS: Registry[KernelSpec] = Registry(
    "kernel", _ROWS["KERNELS"], lambda name: checkout.kernels(name) or missing_kernel(name, BROKEN)
)
ORACLES: Registry[OracleSpec] = Registry("oracle", _ROWS["ORACLES"])
FAULTS: Registry[FaultSpec] = Registry(
    "fault", _ROWS["FAULTS"], lambda name: missing_fault(name, BROKEN)
)


class Found(Protocol):
    """What an oracle found."""

    @property
    def oracle(self) -> str: ...


FoundT = TypeVar("FoundT", bound=Found)


def most_telling_first(findings: Iterable[FoundT]) -> list[FoundT]:
    """Findings by the rank of their oracles.

    The order within one rank is kept. An oracle that is not registered comes last.
    """

    def rank(finding: FoundT) -> int:
        return ORACLES.get(finding.oracle).rank if finding.oracle in ORACLES else LAST

    return sorted(findings, key=rank)


def cuda_twins(kernels: dict[str, str]) -> dict[str, str]:
    """Parameter -> short name of the kernel's twin for a GPU, for each of `kernels` that declares
    one.
    """
    twins = {
        field: KERNELS.get(name).cuda_twin for field, name in kernels.items() if name in KERNELS
    }
    return {field: twin for field, twin in twins.items() if twin}


def planner_of(spec: KernelSpec) -> KernelSpec | None:
    """The kernel that makes the plans of a kernel: of the same name. None for an op without plans.

    Built-in kernels without one share a built-in planner, the first.
    """
    if (plan := OPS.get(spec.op).planned_keyword) is None:
        return None
    _, op = plan
    name = f"{op}/{spec.short_name}"
    if name not in KERNELS and spec.origin == BUILT_IN:
        name = next(one.name for one in KERNELS if one.op == op)
    return KERNELS.get(name) if name in KERNELS else None
