"""The patches that inject known bugs into SGLang, by fault: `patches.yaml`."""

from __future__ import annotations

from pathlib import Path

from mla_harness_adapters.patches import read_patches
from mla_harness_sglang.tables import ENGINE

PATCHES = read_patches(ENGINE, Path(__file__).with_name("patches.yaml"))
