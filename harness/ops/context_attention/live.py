"""The rows that a call of `context_attention` writes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor

from harness.ops.parts.attention import with_context


def tokens_with_context(args: Sequence[Any], num_tokens: int) -> Tensor:
    """The tokens bool [T] that have keys in the context chunk of a call with these arguments, see
    the contract.
    """
    return with_context(args[3], args[4], num_tokens)
