"""Tensors of results, beside their float64 reference.

`finite`: live rows hold no NaN and no Inf where the reference is finite. The payload of a NaN may
name the poison that it comes from.

`reference`: live rows agree with the reference within the bounds of the tolerance table.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from harness.core.cause_codes import Code
from harness.core.finding_words import place
from harness.core.findings import Finding
from harness.core.oracles import OracleSpec
from harness.evidence.records import Evidence, Judgement

if TYPE_CHECKING:
    import torch

    from harness.evidence.compare import Comparison, Mismatch
    from harness.evidence.decisions import Decisions


@dataclass(slots=True)
class Observed:
    """A tensor to judge. Dim 0 counts rows. Only rows with `live[row]` promise anything.

    `expected` is float64 of the same shape, or None without a reference. `bound` names a row of the
    tolerance table. `describe` is the word for a row, such as "request".
    """

    name: str
    tensor: torch.Tensor
    live: torch.Tensor
    expected: torch.Tensor | None = None
    bound: str = ""
    describe: str = "row"
    site: str | None = None
    """The site to name for a value without a site in its bits: a NaN that is no sentinel, or an
    index of the poison.
    """
    decisions: tuple[Decisions, ...] = ()
    """The decisions of the requests in the order of the rows, if the rows depend on decisions."""
    tokens: torch.Tensor | None = None
    """The token [rows] that was taken from each row of logits."""
    slack: torch.Tensor | None = None
    """What the bound allows an element at least, float64 of the same shape: roundings that the case
    makes large.
    """

    @property
    def num_live_elements(self) -> int:
        return int(self.live.sum()) * self.tensor[:1].numel()


def finite(evidence: Evidence) -> Judgement:
    """Look at every live floating-point number of every run."""
    # An integer is always finite. A case with integers only has nothing to look at, which is no
    # pass.
    return Judgement.of(
        (observed.num_live_elements, _not_finite(observed, pattern))
        for observed, pattern in evidence.all(Observed)
        if observed.tensor.dtype.is_floating_point
    )


def _not_finite(observed: Observed, pattern: str) -> Iterator[Finding]:
    from torch_poison.patterns import hex_bits
    from torch_poison.scan import hits, origins

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
                f" {pattern})"
            ),
        )


def _bad(observed: Observed) -> torch.Tensor:
    """The non-finite elements of live rows that differ from the reference.

    Only a NaN excuses a NaN.
    """
    import torch

    values = _values(observed.tensor)
    bad = ~values.isfinite()
    if observed.expected is not None and observed.expected.shape == values.shape:
        expected = observed.expected.to(torch.float64)
        # An infinity is excused by any value that is not finite. `reference` judges whether it is
        # the right one.
        bad &= torch.where(values.isnan(), ~expected.isnan(), expected.isfinite())
    live = observed.live.reshape(-1, *(1,) * (values.ndim - 1))
    return bad & live


def _values(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in a type that has `isfinite`; fp8 has not."""
    return tensor.float() if tensor.element_size() == 1 else tensor


def compared(observed: Observed) -> Comparison:
    """Compare an observed tensor with its reference, which must exist."""
    from harness.evidence.compare import compare
    from harness.evidence.thresholds import bound

    assert observed.expected is not None
    # Ids and codes have no bound, as they must be equal.
    allowed = bound(observed.bound) if observed.expected.dtype.is_floating_point else None
    return compare(observed.tensor, observed.expected, observed.live, allowed, observed.slack)


def reference(evidence: Evidence) -> Judgement:
    """Compare every tensor that has a reference, in every run."""
    return Judgement.of(
        _against_reference(observed, pattern)
        for observed, pattern in evidence.all(Observed)
        if observed.expected is not None
    )


def _against_reference(observed: Observed, pattern: str) -> tuple[int, list[Finding]]:
    comparison = compared(observed)
    mismatch = comparison.mismatch
    if mismatch is None:
        return comparison.looked_at, []
    finding = Finding(
        oracle="reference",
        tensor=observed.name,
        where=mismatch.where(observed.describe, "worst"),
        bits=mismatch.bits(observed.tensor),
        cause=Code.DIFFERS,
        excess=mismatch.finite_excess,
        message=(
            f"{observed.name} differs from the float64 reference:"
            f" {mismatch.message}{_base(observed, mismatch)} (pattern {pattern})"
        ),
    )
    return comparison.looked_at, [finding]


def _base(observed: Observed, mismatch: Mismatch) -> str:
    """A hint if each value of a log-sum-exp is the expected one times log2(e), or times ln 2; else
    empty.
    """
    if (
        mismatch.kind != "value"
        or "lse" not in observed.bound.split(".")
        or observed.expected is None
    ):
        return ""
    found = observed.tensor[observed.live].double()
    expected = observed.expected[observed.live]
    # A ratio of numbers near 0 says nothing.
    telling = found.isfinite() & expected.isfinite() & (expected.abs() > 0.1)
    ratios = found[telling] / expected[telling]
    for factor, words in _BASES.items():
        if len(ratios) > 1 and bool(((ratios / factor - 1).abs() < 0.005).all()):
            return f"; each value is {factor:.4f} times the expected one, {words}"
    return ""


_BASES = {
    math.log2(math.e): "log2(e): it is in base 2, the natural logarithm is promised",
    math.log(2): "ln 2: a natural logarithm was converted as if it were in base 2",
}


ORACLES = (
    OracleSpec(
        "finite",
        "live rows hold no NaN and no Inf where the reference is finite",
        finite,
        needs="floats",
        rank=220,
        by_default=True,
    ),
    OracleSpec(
        "reference",
        "live rows agree with the float64 reference",
        reference,
        rank=310,
        by_default=True,
    ),
)
