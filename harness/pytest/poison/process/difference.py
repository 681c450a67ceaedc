"""Compare two runs of one test under different poisons: their asserted values must have the same bits."""

from __future__ import annotations

import torch

from harness.judge.oracles.compare import compare_bits
from harness.memory.poison.marks import plain
from harness.pytest.poison.process.observation import Asserted, Kept

MAX_SHOWN = 5


def differences(first: list[Asserted], second: list[Asserted]) -> list[str]:
    """A sentence for each difference between the asserted values of two runs.

    An assertion is left out if its two sides have the same bits in each run: a test may compare its unwritten buffer
    with itself.
    """
    with torch._C.DisableTorchFunction():  # A suite may have set a default device; these are copies on the CPU.
        found = _found(first, second)
    return found[:MAX_SHOWN] + ([f"and {len(found) - MAX_SHOWN} more"] if len(found) > MAX_SHOWN else [])


def _found(first: list[Asserted], second: list[Asserted]) -> list[str]:
    found: list[str] = []
    for one, other in zip(first, second, strict=False):
        if one.where != other.where:
            found.append(f"the first run goes on with {one.where}, the second with {other.where}")
            break
        if _is_round_trip(one) and _is_round_trip(other):
            continue
        for number, (left, right) in enumerate(zip(one.sides, other.sides, strict=False), start=1):
            if (difference := _difference(left, right)) is not None:
                found.append(f"argument {number} of {one.where}: {difference}")
    if not found and len(first) != len(second):
        found.append(f"the first run makes {len(first)} assertions on tensors, the second {len(second)}")
    return found


def _is_round_trip(asserted: Asserted) -> bool:
    return len(asserted.sides) == 2 and _difference(*asserted.sides) is None


def _difference(left: Kept, right: Kept) -> str | None:
    if (left.shape, left.dtype) != (right.shape, right.dtype):
        return f"{left.dtype} {list(left.shape)} in the first run, {right.dtype} {list(right.shape)} in the second"
    if left.tensor is None or right.tensor is None:
        return None if left.digest == right.digest else "the bits differ (too large to keep, digests compared)"
    mine, theirs = plain(left.tensor).reshape(-1), plain(right.tensor).reshape(-1)
    mismatch = compare_bits(mine, theirs, torch.ones(mine.shape, dtype=torch.bool)).mismatch
    if mismatch is None:
        return None
    at = mismatch.index[0]
    return (
        f"{mismatch.count} of {mine.numel()} elements differ, first at flat index {at}: "
        f"{float(mine[at]):.6g} in the first run, {float(theirs[at]):.6g} in the second"
    )
