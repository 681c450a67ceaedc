"""Oracles of single values: none in live rows is bad, or comes from memory that holds no result.

`finite`: live rows hold no NaN and no Inf where the reference is finite. The payload of a NaN may
name the poison that it comes from.

`sentinel`: live rows hold no sentinel, and guarded memory keeps its bytes. In bfloat16 and float16
a sentinel proves a copy of uninitialised memory. In float32 the arithmetic of a CPU keeps the
payload of a NaN, so the value may also be computed from such memory. An fp8 NaN has no payload and
any NaN rounds to it. It proves nothing here and is left to `finite`.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch_poison.patterns import UNTAGGED, bits_view, hex_bits, hex_of
from torch_poison.scan import hits, origins, scan

from harness.core.cause_codes import Code
from harness.core.finding_words import few, place
from harness.core.records import Finding
from harness.judge.oracles.compare import compare_bits
from harness.judge.run_records import Evidence, Guard, Judgement, Observed, Run


def finite(evidence: Evidence) -> Judgement:
    """Look at every live floating-point number of every run."""
    # An integer is always finite. A case with integers only has nothing to look at, which is no
    # pass.
    return Judgement.of(
        (observed.num_live_elements, _not_finite(run, observed))
        for run in evidence.runs
        for observed in run.observed
        if observed.tensor.dtype.is_floating_point
    )


def _not_finite(run: Run, observed: Observed) -> Iterator[Finding]:
    tensor = observed.tensor
    if tensor.numel() == 0:
        return
    bad = _bad(observed)
    if not bool(bad.any()):
        return
    for origin, indices in origins(tensor, bad).items():
        where = hits(indices)
        is_inf = bool(_values(tensor[where.first]).isinf())
        what = "Inf" if is_inf else "NaN"
        cause = f", computed from the poison of {origin}" if origin else ""
        yield Finding(
            oracle="finite",
            site=origin or observed.site,
            tensor=observed.name,
            where=place(observed.describe, where.rows, where.first),
            bits=hex_bits(tensor, where.first),
            cause=Code.INF if is_inf else Code.NAN,
            message=(
                f"{what} in live rows of {observed.name}{cause}: {where.count} elements (pattern"
                f" {run.pattern})"
            ),
        )


def _bad(observed: Observed) -> torch.Tensor:
    """The non-finite elements of live rows that differ from the reference.

    Only a NaN excuses a NaN.
    """
    values = _values(observed.tensor)
    bad = ~values.isfinite()
    if observed.expected is not None and observed.expected.shape == values.shape:
        expected = observed.expected.to(torch.float64)
        bad &= torch.where(values.isnan(), ~expected.isnan(), expected.isfinite())
    live = observed.live.reshape(-1, *(1,) * (values.ndim - 1))
    return bad & live


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a type that has `isfinite`; fp8 has not."""
    return tensor.float() if tensor.element_size() == 1 else tensor


def sentinel(evidence: Evidence) -> Judgement:
    """Scan the live rows of every run, and compare every guard with its old content."""
    return Judgement.of(_sentinel_looks(evidence))


def _sentinel_looks(evidence: Evidence) -> Iterator[tuple[int, Iterator[Finding]]]:
    for run in evidence.runs:
        for number, observed in enumerate(run.observed):
            # One byte proves nothing here. A case with fp8 only has nothing to look at, which is no
            # pass.
            if observed.tensor.element_size() > 1:
                yield (
                    observed.num_live_elements,
                    _in_live_rows(run, observed, _over_zeros(evidence, number)),
                )
        for guard in run.guards:
            yield guard.after.numel(), _in_guard(run, guard)


def _over_zeros(evidence: Evidence, number: int) -> Observed | None:
    """The tensor of this `number` in the run whose poison is zeros; None without such a run."""
    run = next((run for run in evidence.runs if run.pattern == "zeros"), None)
    return run.observed[number] if run is not None and number < len(run.observed) else None


def _in_live_rows(run: Run, observed: Observed, over_zeros: Observed | None) -> Iterator[Finding]:
    tensor = observed.tensor
    for site, where in scan(tensor, _judged(observed, over_zeros)).sentinels.items():
        named = observed.site if site == UNTAGGED else site
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
    `over_zeros`: the kernel wrote it, and whether it is right is for `reference` to judge.
    """
    tensor = observed.tensor
    judged = observed.live.reshape(-1, *(1,) * (tensor.ndim - 1)).expand(tensor.shape)
    if tensor.dtype.is_floating_point:
        return judged
    if observed.expected is not None:
        judged = judged & (tensor != observed.expected)
    if over_zeros is not None and over_zeros.tensor.shape == tensor.shape:
        judged = judged & (tensor != over_zeros.tensor)
    return judged


def _in_guard(run: Run, guard: Guard) -> Iterator[Finding]:
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
