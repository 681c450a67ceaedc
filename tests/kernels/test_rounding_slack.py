"""The slack of kernels that round their products: as large as a case makes the roundings, and none
for plain values.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from harness.evidence.compare import SLACK_OF_ROW, compare
from harness.evidence.thresholds import bound
from harness.ops.parts.attention import Rounding

SCALE = 576**-0.5


def attended(q: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Weights [H, n], out [H, 512] and lse [H] of queries [H, 576] and keys [n, 576] float64."""
    scores = q @ keys.T * SCALE
    weights = scores.softmax(dim=1)
    return weights, weights @ keys[:, :512], scores.logsumexp(dim=1)


def given(slack: tuple[Tensor, Tensor] | None) -> tuple[Tensor, Tensor]:
    assert slack is not None
    return slack


def drawn(heads: int, keys: int) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(1)
    q = 2 * torch.randn(heads, 576, generator=generator, dtype=torch.float64)
    return q.bfloat16().double(), torch.randn(keys, 576, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("products", "name"), [("fp8", "fp8_e4m3.in_fp8"), ("bf16", "fp8_e4m3.in_bf16")]
)
def test_plain_values_have_less_slack_than_the_bound_and_exchanged_keys_are_found(
    products: str, name: str
) -> None:
    q, keys = drawn(16, 300)
    rounding = Rounding.of(products, q, torch.float8_e4m3fn)
    weights, out, lse = attended(q, keys)
    slack, _ = given(rounding.slack(q, keys, SCALE, weights, out, lse))
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
    slack, lse_slack = given(rounding.slack(q, keys, SCALE, weights, out, lse))
    live, allowed = torch.ones(1, dtype=torch.bool), bound("mla_decode.out.fp8_e4m3.in_bf16")
    assert compare(found[None], out[None], live, allowed).used > 10
    assert compare(found[None], out[None], live, allowed, slack[None]).used <= 1
    assert abs(found_lse - lse) <= lse_slack
    # A third key has no part in it.
    assert compare(keys[None, 7:8, :512], out[None], live, allowed, slack[None]).used > 1


def test_a_query_far_below_the_scale_of_its_batch_is_rounded_in_steps_of_that_scale() -> None:
    q, keys = drawn(2, 200)
    batch = torch.cat((q, torch.full((1, 576), 9e4, dtype=torch.float64)))
    weights, out, lse = attended(q, keys)
    alone, beside = (Rounding.of("fp8", one, torch.float8_e4m3fn) for one in (q, batch))
    unit = 9e4 / 448
    rounded = (q / unit).to(torch.float8_e4m3fn).double() * unit
    _, found, _ = attended(rounded, keys)
    error = (found - out).square().mean().sqrt()
    slack = [
        given(one.slack(q, keys, SCALE, weights, out, lse))[0].square().mean().sqrt()
        for one in (alone, beside)
    ]
    assert error < slack[1] and slack[1] > 1.2 * slack[0]


def in_two_pieces(q: Tensor, keys: Tensor) -> Tensor:
    """Out [H, 512], whose halves of the keys are merged by float32 log-sum-exps.

    All else is float64.
    """
    parts = [attended(q, half) for half in keys.chunk(2)]
    logs = torch.stack([lse.float() for _, _, lse in parts])
    shares = (logs - logs.logsumexp(dim=0)).double().exp()
    return sum(share[:, None] * out for share, (_, out, _) in zip(shares, parts, strict=True))  # type: ignore[return-value]


def test_pieces_with_equal_large_scores_are_merged_by_rounded_lse() -> None:
    q, keys = drawn(1, 64)
    keys[:, 0], q[:] = 0.0, 0.0
    keys[3, 0] = keys[40, 0] = 4.0
    q[:, 0] = 1.5e4 / 4 / SCALE
    weights, out, lse = attended(q, keys)
    slack, lse_slack = given(
        Rounding.of("float32", q, torch.float32).slack(q, keys, SCALE, weights, out, lse)
    )
    live, allowed = torch.ones(1, dtype=torch.bool), bound("mla_decode.out.fp32")
    found = in_two_pieces(q, keys)
    assert compare(found[None], out[None], live, allowed).used > 10
    assert compare(found[None], out[None], live, allowed, slack[None]).used <= 1
    assert not lse_slack.any()
    # Weights of 0.51 and 0.49 are wrong.
    wrong = 0.51 * keys[None, 3:4, :512] + 0.49 * keys[None, 40:41, :512]
    assert compare(wrong, out[None], live, allowed, slack[None]).used > 3


def test_float32_has_no_slack_for_plain_values_nor_where_one_key_has_all_the_weight() -> None:
    q, keys = drawn(16, 300)
    planted = keys.clone()
    planted[:, 0] = 0.0
    planted[3, 0] = 4.0
    only = torch.zeros_like(q)
    only[:, 0] = 1.5e4 / 4 / SCALE
    for queries, rows in ((q, keys), (only, planted)):
        weights, out, lse = attended(queries, rows)
        slack = Rounding.of("float32", q, torch.float32).slack(
            queries, rows, SCALE, weights, out, lse
        )
        assert slack is None or not slack[0].any()
