"""The slack of kernels that round their products: as large as a case makes the roundings, and none for plain values."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.judge.oracles.compare import SLACK_OF_ROW, compare
from harness.judge.oracles.thresholds import bound
from harness.kernels.ops.reference import Rounding

SCALE = 576**-0.5


def attended(q: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [H, n], out [H, 512] and lse [H] of queries [H, 576] and keys [n, 576] float64."""
    scores = q @ keys.T * SCALE
    weights = scores.softmax(dim=1)
    return weights, weights @ keys[:, :512], scores.logsumexp(dim=1)


def drawn(heads: int, keys: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q = 2 * torch.randn(heads, 576, generator=generator, dtype=torch.float64)
    return q.bfloat16().double(), torch.randn(keys, 576, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(("products", "name"), [("fp8", "fp8_e4m3.in_fp8"), ("bf16", "fp8_e4m3.in_bf16")])
def test_plain_values_have_less_slack_than_the_bound_and_exchanged_keys_are_found(products: str, name: str) -> None:
    q, keys = drawn(16, 300)
    rounding = Rounding.of(products, q, torch.float8_e4m3fn)
    assert rounding is not None
    weights, out, _ = attended(q, keys)
    slack, _ = rounding.slack(q, keys, SCALE, weights, out)
    allowed = bound(f"mla_decode.out.{name}")
    scale = out.square().mean().sqrt()
    assert SLACK_OF_ROW * slack.square().mean().sqrt() < allowed.relative_l2 * scale
    wrong = weights @ keys[:, :512].roll(1, 0)
    live = torch.ones(1, dtype=torch.bool)
    assert compare(wrong[None], out[None], live, allowed, slack[None]).used > 3


def test_two_scores_that_rounding_may_exchange_allow_either_key() -> None:
    q, keys = drawn(1, 64)
    keys[:, 0], q[:] = 0.0, 0.0
    keys[3, 0], keys[40, 0], q[:, 0] = 4.0, 4.0 - 1 / 128, 1.5e4 / 4 / SCALE
    weights, out, lse = attended(q, keys)
    # Rounded to bfloat16 both are 4, and the scores of both 1.5e4.
    rounded = torch.cat((keys[:, :1].bfloat16().double(), keys[:, 1:]), dim=1)
    _, found, found_lse = attended(q, rounded)
    rounding = Rounding.of("bf16", q, torch.float8_e4m3fn)
    assert rounding is not None
    slack, lse_slack = rounding.slack(q, keys, SCALE, weights, out)
    live, allowed = torch.ones(1, dtype=torch.bool), bound("mla_decode.out.fp8_e4m3.in_bf16")
    assert compare(found[None], out[None], live, allowed).used > 10
    assert compare(found[None], out[None], live, allowed, slack[None]).used <= 1
    assert abs(found_lse - lse) <= lse_slack
    # A third key has no part in it.
    assert compare(keys[None, 7:8, :512], out[None], live, allowed, slack[None]).used > 1


def test_a_query_far_below_the_scale_of_its_batch_is_rounded_in_steps_of_that_scale() -> None:
    q, keys = drawn(2, 200)
    batch = torch.cat((q, torch.full((1, 576), 9e4, dtype=torch.float64)))
    weights, out, _ = attended(q, keys)
    alone, beside = (Rounding.of("fp8", one, torch.float8_e4m3fn) for one in (q, batch))
    assert alone is not None and beside is not None
    unit = 9e4 / 448
    rounded = (q / unit).to(torch.float8_e4m3fn).double() * unit
    _, found, _ = attended(rounded, keys)
    error = (found - out).square().mean().sqrt()
    slack = [one.slack(q, keys, SCALE, weights, out)[0].square().mean().sqrt() for one in (alone, beside)]
    assert error < slack[1] and slack[1] > 1.2 * slack[0]


def test_kernels_with_float32_products_have_no_slack() -> None:
    assert Rounding.of("float32", torch.ones(1, 1), torch.float8_e4m3fn) is None
