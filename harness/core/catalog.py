"""The registries, one for each kind of thing, with the rows of the harness and of every engine. No torch here.

Rows name their code as "module:name", which is imported when it is first used.
"""

from __future__ import annotations

import importlib
from typing import Any

from harness.core import faults, kernels, oracles, sites, systems
from harness.core.faults import FaultSpec
from harness.core.kernels import KernelSpec
from harness.core.oracles import OracleSpec
from harness.core.registry import Registry
from harness.core.sites import Site
from harness.core.sound_kernels import sound_variants
from harness.core.systems import EngineSpec, ModelSpec, SystemSpec

__all__ = ["ENGINES", "FAULTS", "KERNELS", "MODELS", "ORACLES", "SITES", "SYSTEMS"]

ENGINE_FOLDERS = ("vllm", "sglang", "flashinfer")
"""Folders of `harness/engines`. Each has a module `tables` with the rows that the engine adds."""

_TABLES = [importlib.import_module(f"harness.engines.{folder}.tables") for folder in ENGINE_FOLDERS]


def _of_engines(name: str) -> tuple[Any, ...]:
    return tuple(row for tables in _TABLES for row in getattr(tables, name, ()))


ENGINES: Registry[EngineSpec] = Registry("engine", tuple(tables.ENGINE for tables in _TABLES))
SYSTEMS: Registry[SystemSpec] = Registry("system", (*systems.SYSTEMS, *_of_engines("SYSTEMS")))
MODELS: Registry[ModelSpec] = Registry("kind of model", (*systems.MODELS, *_of_engines("MODELS")))
SITES: Registry[Site] = Registry("site", (*sites.SITES, *_of_engines("SITES")))
KERNELS: Registry[KernelSpec] = Registry("kernel", (*kernels.KERNELS, *_of_engines("KERNELS")), sound_variants)
ORACLES: Registry[OracleSpec] = Registry("oracle", (*oracles.ORACLES, *_of_engines("ORACLES")))
FAULTS: Registry[FaultSpec] = Registry("fault", (*faults.FAULTS, *_of_engines("FAULTS")))
