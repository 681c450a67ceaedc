"""Memory that must keep its bytes, and oracle `sentinel`.

Live rows hold no sentinel, and guarded memory keeps its bytes. In bfloat16 and float16 a sentinel
proves a copy of uninitialised memory. In float32 the arithmetic of a CPU keeps the payload of a
NaN, so the value may also be computed from such memory. An fp8 NaN has no payload and any NaN
rounds to it. It proves nothing here and is left to `finite`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.finding_words import few, place
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Judgement, Run

if TYPE_CHECKING:
    import torch


@dataclass(slots=True)
class Guard:
    """Memory that must hold the same bytes before and after the run."""

    name: str
    site: str | None
    before: torch.Tensor
    after: torch.Tensor
    row_name: Callable[[int], str] | None = None
    """The name of a row, if its number says nothing: "page 7 of layer 2"."""


def sentinel(evidence: Evidence) -> Judgement:
    """Scan the live rows of every run, and compare every guard with its old content."""
    return Judgement.of(_looks(evidence))


def _looks(evidence: Evidence) -> Iterator[tuple[int, Iterator[Finding]]]:
    zeros = next((run for run in evidence.runs if run.pattern == "zeros"), None)
    # The run over zeros has no poison, so an index that it has too is the kernel's own.
    over_zeros = [] if zeros is None else zeros.all(Observed)
    for run in evidence.runs:
        for number, observed in enumerate(run.all(Observed)):
            # One byte proves nothing here. A case with fp8 only has nothing to look at, which is no
            # pass.
            if observed.tensor.element_size() > 1:
                twin = over_zeros[number] if number < len(over_zeros) else None
                yield observed.num_live_elements, _in_live_rows(run, observed, twin)
        for guard in run.all(Guard):
            yield guard.after.numel(), _in_guard(run, guard)


def _in_live_rows(run: Run, observed: Observed, over_zeros: Observed | None) -> Iterator[Finding]:
    """The sentinels in live rows. `over_zeros` is the same tensor of the run whose poison is zeros,
    if there is one.
    """
    import torch
    from torch_poison.patterns import UNTAGGED, hex_bits
    from torch_poison.scan import scan

    tensor = observed.tensor
    for site, where in scan(tensor, _judged(observed, over_zeros)).sentinels.items():
        named = observed.site if site == UNTAGGED else site
        # float32 arithmetic on x86 keeps a NaN's payload, so these bits may have been computed.
        how = "copied or computed" if tensor.dtype in (torch.float32, torch.float64) else "copied"
        of = f"the sentinel of {site}" if site != UNTAGGED else "an index as the poison writes it"
        yield Finding(
            oracle="sentinel",
            site=named,
            tensor=observed.name,
            where=place(observed.describe, where.rows, where.first),
            bits=hex_bits(tensor, where.first),
            cause=Code.POISON_INDEX if site == UNTAGGED else Code.SENTINEL,
            message=(
                f"live rows of {observed.name} hold {of}, {how} from uninitialised memory: "
                f"{where.count} elements (pattern {run.pattern})"
            ),
        )


def _judged(observed: Observed, over_zeros: Observed | None) -> torch.Tensor:
    """The live elements. Integers that are no trace of poison are left out.

    That is an integer that equals the right answer, which may be -1, and one that is the same
    `over_zeros`: the kernel wrote it, and whether it is right is for `reference` to judge. Without
    a run over zeros a -1 may be the kernel's own, so `reference` judges it too, if there is one.
    """
    tensor = observed.tensor
    judged = observed.live.reshape(-1, *(1,) * (tensor.ndim - 1)).expand(tensor.shape)
    if tensor.dtype.is_floating_point:
        return judged
    if observed.expected is not None:
        judged = judged & (tensor != observed.expected)
        if over_zeros is None:
            judged = judged & (tensor != -1)
    if over_zeros is not None and over_zeros.tensor.shape == tensor.shape:
        judged = judged & (tensor != over_zeros.tensor)
    return judged


def _in_guard(run: Run, guard: Guard) -> Iterator[Finding]:
    import torch
    from torch_poison.patterns import bits_view, hex_bits, hex_of

    from harness.evidence.compare import compare_bits
    from harness.memory.pools import are_equal, is_large

    # A pool of gigabytes is compared by the pages that hold something, and bit by bit only if it
    # differs.
    if is_large(guard.after) and are_equal(guard.before, guard.after):
        return
    everywhere = torch.ones(guard.after.shape[:1], dtype=torch.bool, device=guard.after.device)
    mismatch = compare_bits(guard.after, guard.before, everywhere).mismatch
    if mismatch is None:
        return
    bits = None
    if mismatch.index:
        was = int(bits_view(guard.before[mismatch.index].reshape(1)).item())
        bits = (
            f"{hex_bits(guard.after, mismatch.index)}, was"
            f" {hex_of(was, guard.before.element_size())}"
        )
    named = few([guard.row_name(row) for row in mismatch.rows]) + ": " if guard.row_name else ""
    yield Finding(
        oracle="sentinel",
        site=guard.site,
        tensor=guard.name,
        where=place("row", mismatch.rows, mismatch.index),
        bits=bits,
        cause=Code.WRITTEN,
        message=(
            f"{guard.name} was written, but must not change: {named}{mismatch.message} (pattern"
            f" {run.pattern})"
        ),
    )


ORACLES = (
    OracleSpec(
        "sentinel",
        "no sentinel is found verbatim in live rows, and guarded memory is untouched",
        sentinel,
        rank=210,
        by_default=True,
    ),
)
