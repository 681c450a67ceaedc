"""The patches that inject known bugs into vLLM, by fault: `patches.yaml`."""

from __future__ import annotations

import importlib
from pathlib import Path

from mla_harness_adapters.patches import read_patches
from mla_harness_vllm.tables import ENGINE

PATCHES = read_patches(ENGINE, Path(__file__).with_name("patches.yaml"))


def inject(fault: str) -> None:
    """Inject a fault into this vLLM process.

    Raises InputError for an unknown one, PatchRefused if it does not fit.
    """
    PATCHES.inject(fault, importlib.import_module("vllm").__version__)
