"""Blocks that a scheduler wants zeroed.

Oracle `zeroed`: they hold zeros when a step first reads them.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement


@dataclass(frozen=True, slots=True)
class ZeroedBlock:
    """A block that the scheduler listed for zeroing, and how many of its bytes were not zero when
    the step ran.
    """

    step: int
    block: int
    num_bytes: int
    num_dirty: int


def zeroed(evidence: Evidence) -> Judgement:
    """Look at every listed block of every step of every run."""
    return Judgement.of(
        (block.num_bytes, _dirty(block, pattern)) for block, pattern in evidence.all(ZeroedBlock)
    )


def _dirty(block: ZeroedBlock, pattern: str) -> Iterator[Finding]:
    if block.num_dirty:
        yield Finding(
            oracle="zeroed",
            site="kv.new",
            tensor="new blocks",
            where=f"block {block.block}",
            cause=Code.DIRTY,
            message=(
                f"a block that the scheduler wants zeroed holds old data: block {block.block} in"
                f" step {block.step}, {block.num_dirty} of {block.num_bytes} bytes (pattern"
                f" {pattern})"
            ),
        )


ORACLES = (
    OracleSpec(
        "zeroed",
        "each block that the scheduler says to zero holds zeros before its first read",
        zeroed,
        needs="mixed",
        rank=160,
        by_default=True,
    ),
)
