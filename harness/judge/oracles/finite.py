"""Oracle `finite`: live rows hold no NaN and no Inf where the reference is finite.

The payload of a NaN may name the poison that it comes from.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from harness.core.finding_words import place
from harness.core.records import Finding
from harness.judge.run_records import Evidence, Judgement, Observed, Run
from harness.memory.poison.patterns import hex_bits
from harness.memory.poison.scan import hits, origins


def judge(evidence: Evidence) -> Judgement:
    """Look at every live floating-point number of every run."""
    # An integer is always finite. A case with integers only has nothing to look at, which is no pass.
    return Judgement.of(
        (observed.num_live_elements, _findings(run, observed))
        for run in evidence.runs
        for observed in run.observed
        if observed.tensor.dtype.is_floating_point
    )


def _findings(run: Run, observed: Observed) -> Iterator[Finding]:
    tensor = observed.tensor
    if tensor.numel() == 0:
        return
    bad = _bad(observed)
    if not bool(bad.any()):
        return
    for origin, indices in origins(tensor, bad).items():
        where = hits(indices)
        what = "Inf" if _values(tensor[where.first]).isinf().item() else "NaN"
        cause = f", computed from the poison of {origin}" if origin else ""
        yield Finding(
            oracle="finite",
            site=origin or observed.site,
            tensor=observed.name,
            where=place(observed.describe, where.rows, where.first),
            bits=hex_bits(tensor, where.first),
            message=f"{what} in live rows of {observed.name}{cause}: {where.count} elements (pattern {run.pattern})",
        )


def _bad(observed: Observed) -> torch.Tensor:
    """The non-finite elements of live rows that differ from the reference. Only a NaN excuses a NaN."""
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
