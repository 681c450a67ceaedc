"""The patches that inject known bugs into vLLM, by fault: `patches.yaml`."""

from __future__ import annotations

from pathlib import Path

from harness.engines import patches
from harness.engines.patches import Patch
from harness.engines.vllm.tables import ENGINE

PATCHES = patches.read_patches(ENGINE, Path(__file__).with_name("patches.yaml"))


def patch_for(fault: str, version: str) -> Patch:
    """The patch that injects a fault into a release. If none does, a patch with the reason in its `why_not`.

    Raises InputError for an unknown fault.
    """
    return patches.patch_for(PATCHES, fault, version)


def inject(fault: str, version: str) -> None:
    """Inject a fault into this process. Raises InputError for an unknown one, PatchRefused if it does not fit."""
    patch_for(fault, version).apply(version)


def why_not(fault: str, version: str) -> str:
    """Why a fault cannot be injected into a release, by its number alone; empty if it can be tried."""
    return patch_for(fault, version).why_not(version)
