"""The patches that inject known bugs into SGLang, by fault: `patches.yaml`."""

from __future__ import annotations

from pathlib import Path

from harness.engines.patches import patch_for, read_patches
from harness.engines.sglang.tables import ENGINE

PATCHES = read_patches(ENGINE, Path(__file__).with_name("patches.yaml"))


def inject(fault: str, version: str) -> None:
    """Inject a fault into this process. Raises InputError for an unknown one, PatchRefused if it does not fit."""
    patch_for(PATCHES, fault, version).apply(version)


def why_not(fault: str, version: str) -> str:
    """Why a fault cannot be injected into a release, by its number alone; empty if it can be tried."""
    return patch_for(PATCHES, fault, version).why_not(version)
