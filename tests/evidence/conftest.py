"""Small evidence for the oracles: three live rows of four, with a reference."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from harness.core.cases import Case
from harness.evidence.observed import Observed
from harness.evidence.records import Evidence, Run

from ..accuracy.conftest import stored_run as stored_run  # type: ignore[import-not-found]

MakeObserved = Callable[..., Observed]
MakeEvidence = Callable[..., Evidence]

LIVE = torch.tensor([True, True, True, False])


def answer(seed: int = 0) -> torch.Tensor:
    """A float64 answer [4, 2, 8] whose rows are far from one another."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(4, 2, 8, generator=generator, dtype=torch.float64)


@pytest.fixture
def expected() -> torch.Tensor:
    return answer()


@pytest.fixture
def observe(expected: torch.Tensor) -> MakeObserved:
    """Make an Observed of a tensor (the right answer in float32 by default)."""

    def make(tensor: torch.Tensor | None = None, **changes: object) -> Observed:
        settings: dict[str, object] = {
            "name": "out",
            "tensor": expected.float() if tensor is None else tensor,
            "live": LIVE,
            "expected": expected,
            "bound": "mla_decode.out.fp32",
            "describe": "request",
        }
        return Observed(**(settings | changes))  # type: ignore[arg-type]

    return make


@pytest.fixture
def evidence() -> MakeEvidence:
    """Evidence of runs under the patterns nan, zeros, max in this order."""

    def make(*runs: Run) -> Evidence:
        return Evidence(
            Case(id="case", scenario="scenario", system="kernel", op="write_kv"), list(runs)
        )

    return make


WRONG: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "zeros": torch.zeros_like,
    "negated": torch.neg,
    "permuted": lambda t: t.roll(1, dims=0),
    "scaled by 1.01": lambda t: t * 1.01,
    "all NaN": lambda t: torch.full_like(t, float("nan")),
    "all Inf": lambda t: torch.full_like(t, float("inf")),
    "constant": lambda t: torch.full_like(t, 0.5),
}


@pytest.fixture(
    params=[(how, row) for how in WRONG for row in (None, 1)], ids=lambda p: f"{p[0]}, row {p[1]}"
)
def spoil(request: pytest.FixtureRequest) -> Callable[[torch.Tensor], torch.Tensor]:
    """Each classic way to be wrong, in every row and in one row only; a test that uses it runs for
    each.
    """
    how, row = request.param

    def spoiled(tensor: torch.Tensor) -> torch.Tensor:
        wrong = WRONG[how](tensor)
        if row is None:
            return wrong
        out = tensor.clone()
        out[row] = wrong[row]
        return out

    return spoiled
