"""The scale of an fp8 cache: the checkpoint's, or a default."""

from __future__ import annotations

import torch

from harness.core.seams import seam
from harness.engine.schedule.config import KV_SCALE

NOT_LOADED = torch.finfo(torch.float32).min
"""The scale before a checkpoint is loaded. No real scale has this value."""


@seam("scale.sentinel-never-replaced")
def settled(loaded: float) -> float:
    """The scale to divide by after loading: the default if the checkpoint has none.

    A sentinel left in place would divide every latent to 0.
    """
    return KV_SCALE if loaded == NOT_LOADED else loaded
