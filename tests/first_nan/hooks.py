"""Whether a module has hooks. torch has no public name for them."""

from __future__ import annotations

from torch import nn


def has_hooks(model: nn.Module) -> bool:
    """Whether the model or one of its modules has a hook of its forward."""
    return any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
