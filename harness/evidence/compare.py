"""The only comparator of the project: exact about non-finite values, then bounded row by row.

Comparators that count "mismatches beyond tolerance" pass an output of NaN, because `abs(a - b) >
tol` is false for NaN. Here the masks of NaN, +Inf and -Inf must agree first, no ratio covers a
non-finite value, and every live row must keep its own bounds.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import numpy
import torch
from torch_poison.patterns import bits_view, hex_bits

from harness.core.finding_words import place
from harness.evidence.thresholds import Bound
from harness.ops.parts.judged import SLACK_OF_ELEMENT, SLACK_OF_ROW

Kind = Literal["shape", "dtype", "non-finite", "value", "bits"]


@dataclass(frozen=True, slots=True)
class Mismatch:
    """The rows that disagree, and the index of the worst element.

    `excess` is its error as a multiple of the bound.
    """

    kind: Kind
    message: str
    rows: tuple[int, ...] = ()
    index: tuple[int, ...] = ()
    count: int = 0
    excess: float = math.inf

    @property
    def finite_excess(self) -> float | None:
        """`excess` if the bound is a number; None for a mismatch of shapes, bits or non-finite
        values.
        """
        return self.excess if math.isfinite(self.excess) else None

    def where(self, describe: str, what: str = "first") -> str:
        """The rows in words, with the index of the first or worst element; empty without rows."""
        return place(describe, self.rows, self.index, what) if self.rows else ""

    def bits(
        self, got: torch.Tensor, beside: torch.Tensor | None = None, label: str = ""
    ) -> str | None:
        """The element of got [...] at `index` in hex, such as 0x7fc1 of a bfloat16, and the
        labelled one of beside [...], of one shape.

        None without index.
        """
        if not self.index:
            return None
        text = hex_bits(got, self.index)
        return text if beside is None else f"{text} / {label}{hex_bits(beside, self.index)}"


@dataclass(frozen=True, slots=True)
class Comparison:
    """The number of compared elements, the mismatch if there is one, and the used share of the
    bound.
    """

    looked_at: int
    mismatch: Mismatch | None = None
    used: float = 0.0


def compare(
    got: torch.Tensor,
    want: torch.Tensor,
    live: torch.Tensor,
    bound: Bound | None,
    slack: torch.Tensor | None = None,
) -> Comparison:
    """Compare the live rows of got [rows, ...] with want [rows, ...], float64, or integers that
    must be equal.

    live: [rows] bool. Order: shape, dtype class, non-finite masks, then per element and per row. A
    NaN is right only where `want` is NaN. `bound` may be None for integers only; raises ValueError
    otherwise. The bound allows an element at least SLACK_OF_ELEMENT times its slack [rows, ...]
    float64, and a row SLACK_OF_ROW times the root mean square of its slack.
    """
    border = _border_mismatch(got, want)
    if border is not None:
        return Comparison(max(got.numel(), want.numel()), border, math.inf)
    rows = live.nonzero().flatten()
    if len(rows) == 0 or got.numel() == 0:
        return Comparison(0)
    ours = got[rows]
    theirs = want[rows]
    if not want.dtype.is_floating_point:
        # Ids and codes have no tolerance, and a kernel may return any width of integers.
        return _bitwise(ours.to(torch.int64), theirs.to(torch.int64), rows)
    if bound is None:
        raise ValueError("floating-point values are compared within a bound of oracles.thresholds")
    mine = _by_row(ours.to(torch.float64))
    reference = _by_row(theirs.to(torch.float64))
    looked_at = mine.numel()
    same = (mine == reference) | (mine.isnan() & reference.isnan())
    # Before any tolerance: abs(a - b) > tol is false for NaN, so a bound alone would pass it.
    odd = ~same & ~(mine.isfinite() & reference.isfinite())
    if bool(odd.any()):
        at, mismatch = _elements("non-finite", odd, rows, got.shape)
        values = f"{_number(mine[at])} where {_number(reference[at])} is expected"
        message = (
            f"{values}; {mismatch.count} of {looked_at} live elements are finite in only one of"
            " them"
        )
        return Comparison(looked_at, replace(mismatch, message=message), math.inf)
    least = None if slack is None else _by_row(slack[rows].to(reference.device))
    return _within(mine, reference, rows, got.shape, bound, least)


def compare_bits(got: torch.Tensor, want: torch.Tensor, live: torch.Tensor) -> Comparison:
    """Compare the live rows of got [rows, ...] and want [rows, ...] bit by bit, for two runs of one
    kernel on the same inputs.

    They have one dtype, any; live: [rows] bool.
    """
    border = _border_mismatch(got, want)
    if border is None and got.dtype != want.dtype:
        border = Mismatch("dtype", f"one is {_name(got)}, the other {_name(want)}")
    if border is not None:
        return Comparison(max(got.numel(), want.numel()), border, math.inf)
    if bool(live.all()):
        # The usual case, without the copies that a selection of rows makes.
        ours = bits_view(got.contiguous())
        theirs = bits_view(want.contiguous())
        if torch.equal(ours, theirs):
            return Comparison(got.numel())
    rows = live.nonzero().flatten()
    if len(rows) == 0 or got.numel() == 0:
        return Comparison(0)
    return _bitwise(bits_view(got[rows].contiguous()), bits_view(want[rows].contiguous()), rows)


def blank_rows(
    tensor: torch.Tensor, live: torch.Tensor, expected: torch.Tensor | None = None
) -> tuple[int, ...]:
    """Live rows of tensor [rows, ...] with the same bits in all elements (zeros, or one NaN), which
    cannot show an influence.

    live [rows] is bool; expected [rows, ...] is float64 or integers. Not counted are rows with
    equal expected values, and rows of a single element that is no NaN.
    """
    rows = live.nonzero().flatten()
    if len(rows) == 0 or tensor.numel() == 0:
        return ()
    bits = _by_row(bits_view(tensor[rows].contiguous()))
    blank = (bits == bits[:, :1]).all(dim=1)
    if bits.shape[1] == 1:
        # A row of one element always equals itself, so only a NaN of it says anything.
        blank &= _by_row(tensor[rows]).to(torch.float64).isnan()[:, 0]
    if expected is not None:
        wanted = _by_row(expected[rows])
        alike = ((wanted == wanted[:, :1]) | (wanted.isnan() & wanted[:, :1].isnan())).all(dim=1)
        blank &= ~alike if wanted.shape[1] > 1 else ~wanted.isnan()[:, 0]
    return tuple(int(row) for row in rows[blank])


def largest_difference(one: torch.Tensor, other: torch.Tensor, live: torch.Tensor) -> float:
    """The largest absolute difference of live rows: 0 for equal bits, inf if only one value is
    finite.

    one, other: the same shape, dim 0 rows; live: [rows] bool. Integers are ids: unequal ones differ
    by inf.
    """
    if one.shape != other.shape or one.dtype != other.dtype:
        return math.inf
    mine = one[live]
    theirs = other[live]
    # The difference of two ids is no distance.
    if not one.dtype.is_floating_point:
        return 0.0 if torch.equal(mine, theirs) else math.inf
    mine = mine.to(torch.float64)
    theirs = theirs.to(torch.float64)
    same = (mine == theirs) | (mine.isnan() & theirs.isnan())
    difference = torch.where(same, torch.zeros_like(mine), (mine - theirs).abs())
    if not difference.numel():
        return 0.0
    return float(difference.nan_to_num(nan=math.inf, posinf=math.inf).max())


def explanation(name: str, difference: float, spread: float) -> str | None:
    """A sentence if the spread covers the difference, else None.

    A device that repeats its bits has a spread of 0.
    """
    if not (0.0 < spread < math.inf and difference <= spread):
        return None
    return (
        f"{name} is not bitwise repeatable here: two equal runs differ by up to {spread:.3g}, "
        f"and a difference of {difference:.3g} is within that"
    )


def _border_mismatch(got: torch.Tensor, want: torch.Tensor) -> Mismatch | None:
    if got.shape != want.shape:
        return Mismatch("shape", f"shape {list(got.shape)} where {list(want.shape)} is expected")
    if got.dtype.is_floating_point != want.dtype.is_floating_point or got.dtype.is_complex:
        kind = "floating point" if want.dtype.is_floating_point else "integers"
        return Mismatch("dtype", f"dtype {_name(got)} where {kind} are expected")
    return None


def _elements(
    kind: Kind, wrong: torch.Tensor, rows: torch.Tensor, shape: torch.Size
) -> tuple[tuple[int, int], Mismatch]:
    """The first of the `wrong` [live rows, n] bool elements, and the mismatch of all of them."""
    first = wrong.nonzero()[0]
    at = (int(first[0]), int(first[1]))
    count = int(wrong.sum())
    message = f"{count} of {wrong.numel()} live elements differ"
    return at, Mismatch(
        kind, message, _rows(rows, wrong.any(dim=1)), _index(rows, at, shape), count
    )


def _within(
    mine: torch.Tensor,
    reference: torch.Tensor,
    rows: torch.Tensor,
    shape: torch.Size,
    bound: Bound,
    least: torch.Tensor | None,
) -> Comparison:
    """Both per-element and per-row bounds, on elements that are finite in the reference."""
    finite = reference.isfinite()
    zero = torch.zeros((), dtype=torch.float64, device=mine.device)
    reference = torch.where(finite, reference, zero)
    # Infinities that agree were accepted above; inf - inf would be NaN here.
    error = torch.where(finite, (mine - reference).abs(), zero)
    # A row may be infinite in all its elements, where the division needs a count.
    counted = finite.sum(dim=1).clamp(min=1)
    scale = (reference.square().sum(dim=1) / counted).sqrt().clamp(min=bound.least_scale)
    allowed = _allowed(reference, scale, bound)
    allowed_row = bound.relative_l2 * scale
    if least is not None:
        allowed = torch.maximum(allowed, SLACK_OF_ELEMENT * least)
        allowed_row = torch.maximum(allowed_row, SLACK_OF_ROW * least.square().mean(dim=1).sqrt())
    by_element = _share(error, allowed)
    by_row = _share((error.square().sum(dim=1) / counted).sqrt(), allowed_row)
    used = torch.maximum(by_element.amax(dim=1), by_row)
    worst_row = int(used.argmax())
    excess = float(used[worst_row])
    if excess <= 1:
        return Comparison(mine.numel(), None, excess)
    at = (worst_row, int(by_element[worst_row].argmax()))
    wrong = used > 1
    count = int((by_element > 1).sum())
    measure = "relative L2 of the row" if by_row[worst_row] >= by_element[at] else "element"
    message = (
        f"{_number(mine[at])} where {_number(reference[at])} is expected; {int(wrong.sum())} of"
        f" {len(rows)} live rows and {count} of {mine.numel()} elements are beyond {bound.name},"
        f" worst {excess:.3g} times it ({measure})"
    )
    mismatch = Mismatch(
        # A row may be beyond its bound though none of its elements is.
        "value",
        message,
        _rows(rows, wrong),
        _index(rows, at, shape),
        max(count, 1),
        excess,
    )
    return Comparison(mine.numel(), mismatch, excess)


def _allowed(reference: torch.Tensor, scale: torch.Tensor, bound: Bound) -> torch.Tensor:
    """The error [rows, n] that `bound` allows each element of `reference` [rows, n] in rows of the
    `scale` [rows].
    """
    return torch.maximum(bound.ulps * _ulp(reference, bound.dtype), bound.floor * scale[:, None])


def token_margins(logits: torch.Tensor, bound: Bound) -> torch.Tensor:
    """How far rounding may bring a token below the best of the reference's `logits` [rows, vocab]
    float64: [rows].

    Both may be off by what `bound` allows.
    """
    scale = logits.square().mean(dim=1).sqrt().clamp(min=bound.least_scale)
    return 2 * _allowed(logits, scale, bound).amax(dim=1)


def _bitwise(mine: torch.Tensor, reference: torch.Tensor, rows: torch.Tensor) -> Comparison:
    differ = _by_row(mine != reference)
    if not bool(differ.any()):
        return Comparison(differ.numel())
    return Comparison(differ.numel(), _elements("bits", differ, rows, mine.shape)[1], math.inf)


def _ulp(values: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The unit in the last place of `dtype` at each value, float64; below the smallest normal, its
    unit.
    """
    info = torch.finfo(dtype)
    exponent = torch.frexp(values.abs().clamp(min=info.tiny)).exponent - 1
    return torch.ldexp(torch.full_like(values, info.eps), exponent)


def _share(error: torch.Tensor, allowed: torch.Tensor) -> torch.Tensor:
    """error / allowed. An allowance of 0 admits an error of 0 only."""
    return torch.where(error == 0, torch.zeros_like(error), error / allowed)


def _by_row(tensor: torch.Tensor) -> torch.Tensor:
    """[rows, elements of a row]; the rows of a vector have one element."""
    return tensor.reshape(tensor.shape[0], -1)


def _rows(rows: torch.Tensor, wrong: torch.Tensor) -> tuple[int, ...]:
    return tuple(int(row) for row in rows[wrong])


def _index(rows: torch.Tensor, at: tuple[int, int], shape: torch.Size) -> tuple[int, ...]:
    """The index in the whole tensor of the element `at` (live row, flat position in the row)."""
    inner = numpy.unravel_index(at[1], tuple(shape[1:])) if shape[1:] else ()
    return (int(rows[at[0]]), *map(int, inner))


def _number(value: torch.Tensor) -> str:
    return f"{float(value):.6g}"


def _name(tensor: torch.Tensor) -> str:
    return str(tensor.dtype).removeprefix("torch.")
