"""Words of findings: row numbers as ranges, and equal findings as one with a count."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from harness.core.findings import Finding

MAX_RANGES = 6


def ranges(rows: Iterable[int]) -> str:
    """Row numbers as text: [0, 1, 2, 5] -> ``0-2, 5``, with at most MAX_RANGES ranges."""
    runs: list[list[int]] = []
    for row in sorted(rows):
        if runs and row == runs[-1][1] + 1:
            runs[-1][1] = row
        else:
            runs.append([row, row])
    return few([f"{a}" if a == b else f"{a}-{b}" for a, b in runs], "more ranges")


def few(texts: Sequence[str], more: str = "more") -> str:
    """The first MAX_RANGES of `texts`, and the number of the others."""
    rest = len(texts) - MAX_RANGES
    return ", ".join(texts[:MAX_RANGES]) + (f" and {rest} {more}" if rest > 0 else "")


def place(
    describe: str, rows: Iterable[int], index: tuple[int, ...] = (), what: str = "first"
) -> str:
    """A place in a tensor in words: ``request 0-2, 5; first at [0, 3, 17]``."""
    text = f"{describe} {ranges(rows)}"
    return f"{text}; {what} at {list(index)}" if len(index) > 1 else text


def merged(findings: Iterable[Finding]) -> list[Finding]:
    """Keep the first of each group of findings that differ in numbers only, with the count of the
    others.

    The others are about other steps, patterns or rows.
    """
    groups: dict[tuple[str, ...], list[Finding]] = {}
    for finding in findings:
        groups.setdefault(kind_of(finding), []).append(finding)
    counted = ((first, len(others)) for first, *others in groups.values())
    return [
        one.but(message=f"{one.message} ({more} more like it)") if more else one
        for one, more in counted
    ]


def kind_of(finding: Finding) -> tuple[str, ...]:
    """What makes two findings the same failure: oracle, site, tensor without its numbers, and
    cause.
    """
    tensor = re.sub(r"\d+", "#", finding.tensor)
    return finding.oracle, finding.site or "", tensor, finding.cause, finding.error, finding.kernel
