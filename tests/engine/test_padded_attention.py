"""Prompts computed together, padded to the longest, are prompts computed one by one."""

from __future__ import annotations

import pytest
import torch

from harness.engine.attention import causal_attention, padded_causal_attention

SPANS = [(0, 5), (5, 70), (70, 71), (71, 100)]


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    torch.manual_seed(3)
    q, k, v = (torch.randn(100, 4, width, dtype=torch.float64) for width in (24, 24, 16))
    return q, k, v


@pytest.mark.parametrize(
    "spans", [SPANS, [(0, 100)], [(start, start + 10) for start in range(0, 100, 10)]]
)
def test_values_and_lse_are_those_of_each_prompt_alone(spans: list[tuple[int, int]]) -> None:
    q, k, v = inputs()
    padded, alone = (
        compute(q, k, v, spans, 0.3) for compute in (padded_causal_attention, causal_attention)
    )
    for got, want in zip(padded, alone, strict=True):
        assert got.shape == want.shape and torch.allclose(got, want, rtol=1e-12, atol=1e-12)


def test_what_is_not_finite_in_one_prompt_stays_there() -> None:
    q, k, v = inputs()
    v[0], k[71] = float("nan"), float("inf")
    got, _ = padded_causal_attention(q, k, v, SPANS, 0.3)
    want, _ = causal_attention(q, k, v, SPANS, 0.3)
    assert torch.equal(got.isnan(), want.isnan())
    assert bool(got[:5].isnan().all()) and not bool(got[5:71].isnan().any())
