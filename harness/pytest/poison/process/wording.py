"""A finding in words, for the report of a test."""

from __future__ import annotations

from collections.abc import Sequence

from harness.memory.poison.marks import Line, describe, short
from harness.pytest.poison.process.observation import PoisonFound

MAX_FINDINGS = 5
MAX_ORIGINS = 3
OWNERS = {"code": "allocated by the code under test:", "tests": "allocated by the test:"}


def sentences(found: Sequence[PoisonFound]) -> list[str]:
    """All findings, alike ones once, each with the stack of its allocation."""
    unique = list(dict.fromkeys(found))
    lines: list[str] = []
    for one in unique[:MAX_FINDINGS]:
        lines.append(
            f"{one.what} at {short(one.where)} holds memory that nobody wrote, or what was computed from it: "
            f"{one.count} of {one.total} elements, first at {list(one.index)}, bits {one.bits}"
        )
        lines += _origin(one)
    if len(unique) > MAX_FINDINGS:
        lines.append(f"and {len(unique) - MAX_FINDINGS} more findings")
    return lines


def _origin(one: PoisonFound) -> list[str]:
    if one.owner is None:
        return ["  it was free CUDA memory before the test, and no allocation through torch's dispatcher"]
    if not one.origins:
        return ["  its line is not known: it was allocated before this test"]
    lines = [f"  {OWNERS[one.owner]}"]
    if len(one.origins) > 1:
        lines.append(f"  one of {len(one.origins)} lines, as a 6-bit mark does not tell which:")
    for stack in one.origins[:MAX_ORIGINS]:
        lines += _stack(stack)
    return lines


def _stack(stack: tuple[Line, ...]) -> list[str]:
    first, *rest = map(describe, stack)
    return [f"    {short(first)}", *(f"      from {short(line)}" for line in rest)]
