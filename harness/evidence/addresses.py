"""The addresses that a graph captured, and oracle `address`: a graph reads the same tensor that the
engine updates before a replay.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from harness.core.cause_codes import Code
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement


@dataclass(frozen=True, slots=True)
class Binding:
    """The address where a captured graph reads an input, and the address that the engine updated
    before a replay.
    """

    step: int
    name: str
    site: str
    captured_address: int
    current_address: int


def address(evidence: Evidence) -> Judgement:
    """Compare the two addresses of every binding of every step, in every run."""
    return Judgement.of(
        (1, _other_address(binding, pattern)) for binding, pattern in evidence.all(Binding)
    )


def _other_address(binding: Binding, pattern: str) -> Iterator[Finding]:
    if binding.captured_address != binding.current_address:
        yield Finding(
            oracle="address",
            site=binding.site,
            tensor=binding.name,
            where=f"step {binding.step}",
            bits=f"captured 0x{binding.captured_address:x}, updated 0x{binding.current_address:x}",
            cause=Code.OTHER_ADDRESS,
            message=(
                f"the graph reads {binding.name} where it was captured, but the engine updates"
                f" another tensor (pattern {pattern})"
            ),
        )


ORACLES = (
    OracleSpec(
        "address",
        "the tensor that a graph captured is the one that the engine updates",
        address,
        needs="batches",
        rank=110,
    ),
)
