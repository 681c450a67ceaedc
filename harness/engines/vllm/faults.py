"""The patches that inject known bugs into vLLM, by fault: `patches.yaml`."""

from __future__ import annotations

from pathlib import Path

from harness.engines.patches import read_patches
from harness.engines.vllm.tables import ENGINE

PATCHES = read_patches(ENGINE, Path(__file__).with_name("patches.yaml"))
