"""The scale of an fp8 cache: what a checkpoint gives, or a default for one that gives none."""

from __future__ import annotations

import torch

from harness.core.seams import seam
from harness.engine.schedule.config import KV_SCALE

NOT_LOADED = torch.finfo(torch.float32).min
"""What a scale holds before a checkpoint is loaded, so that a missing one can be told from any real one."""


@seam("scale.sentinel-never-replaced")
def settled(loaded: float) -> float:
    """The scale to divide by, once the checkpoint is loaded: the default in the place of one that it did not have.

    A sentinel that stays divides every latent to 0.
    """
    return KV_SCALE if loaded == NOT_LOADED else loaded
