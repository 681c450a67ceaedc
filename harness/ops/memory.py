"""Index checks that fail as the hardware would: Python's forgiving negative and clipped indices help nobody here."""

from __future__ import annotations

import torch

from harness.errors import IllegalAddress


def check_indices(indices: torch.Tensor, size: int, what: str) -> torch.Tensor:
    """Return `indices` (any int dtype) as int64 after checking that each lies in [0, size).

    Raises IllegalAddress naming the first offender. A GPU would fault, or read whatever lies there
    (vllm-project/vllm#33664, #43869); `tensor[-1]` in Python would quietly read the last element.
    """
    wide = indices.to(torch.int64)
    bad = (wide < 0) | (wide >= size)
    if bool(bad.any()):
        first = tuple(int(i) for i in bad.nonzero()[0])
        raise IllegalAddress(f"{what}: index {int(wide[first])} at {list(first)} is outside [0, {size})")
    return wide
