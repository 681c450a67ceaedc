from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.evidence.compare import blank_rows, compare, compare_bits
from harness.evidence.thresholds import BOUNDS, Bound, bound

NAN, INF = float("nan"), float("inf")
FP32 = bound("mla_decode.out.fp32")
LIVE = torch.ones(4, dtype=torch.bool)
ALL_BOUNDS = [entry.name for entry in BOUNDS]


def answer(rows: int = 4, width: int = 16, seed: int = 1) -> torch.Tensor:
    return torch.randn(
        rows, width, generator=torch.Generator().manual_seed(seed), dtype=torch.float64
    )


def test_the_right_answer_agrees_and_everything_is_looked_at():
    want = answer()
    comparison = compare(want.float(), want, LIVE, FP32)
    assert comparison.mismatch is None
    assert comparison.looked_at == want.numel()
    assert 0 < comparison.used < 1


@pytest.mark.parametrize("name", ALL_BOUNDS)
def test_every_bound_passes_the_answer_rounded_to_its_type(name):
    want = answer()
    used = bound(name)
    if used.ulps == 0:
        want = want.to(used.dtype).double()
    assert compare(want.to(used.dtype), want, LIVE, used).mismatch is None


WRONG = {
    "zeros": torch.zeros_like,
    "negated": torch.neg,
    "permuted": lambda t: t.roll(1, dims=0),
    "doubled": lambda t: t * 2,
    "halved": lambda t: t / 2,
    "one element off": lambda t: t + torch.eye(t.shape[0], t.shape[1], dtype=t.dtype) * 4,
    "all NaN": lambda t: torch.full_like(t, NAN),
    "one NaN": lambda t: torch.where(torch.eye(t.shape[0], t.shape[1]) > 0, NAN, t),
    "all +Inf": lambda t: torch.full_like(t, INF),
    "one -Inf": lambda t: torch.where(torch.eye(t.shape[0], t.shape[1]) > 0, -INF, t),
}


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("name", ALL_BOUNDS)
def test_no_bound_lets_a_wrong_output_pass(name, how):
    want = answer()
    comparison = compare(WRONG[how](want), want, LIVE, bound(name))
    assert comparison.mismatch is not None
    assert comparison.mismatch.rows == (0, 1, 2, 3)


@pytest.mark.parametrize("how", WRONG)
@pytest.mark.parametrize("name", ALL_BOUNDS)
def test_one_wrong_row_of_a_thousand_is_found_and_named(name, how):
    want = answer(1000, 16)
    got = want.clone()
    got[617] = WRONG[how](want)[617]
    if "one" in how:
        got[617, 3] = {
            "one element off": float(want[617, 3]) + 4,
            "one NaN": NAN,
            "one -Inf": -INF,
        }[how]
    mismatch = compare(got, want, torch.ones(1000, dtype=torch.bool), bound(name)).mismatch
    assert mismatch is not None
    assert mismatch.rows == (617,)
    assert mismatch.index[0] == 617


def test_a_row_scaled_by_one_percent_fails_in_float32():
    want = answer()
    got = want.clone()
    got[2] *= 1.01
    mismatch = compare(got.float(), want, LIVE, FP32).mismatch
    assert mismatch is not None and mismatch.rows == (2,) and mismatch.kind == "value"
    assert mismatch.excess > 100


def test_a_nan_where_the_reference_has_a_nan_agrees_and_the_rest_is_still_compared():
    want = answer()
    want[1, 5] = NAN
    got = want.float()
    assert compare(got, want, LIVE, FP32).mismatch is None
    got[1, 6] += 1
    mismatch = compare(got, want, LIVE, FP32).mismatch
    assert mismatch is not None and mismatch.kind == "value" and mismatch.index == (1, 6)


def test_a_number_where_the_reference_has_a_nan_is_a_mismatch():
    want = answer()
    want[1, 5] = NAN
    got = want.float()
    got[1, 5] = 0.0
    mismatch = compare(got, want, LIVE, FP32).mismatch
    assert mismatch is not None and mismatch.kind == "non-finite" and mismatch.index == (1, 5)


@pytest.mark.parametrize(
    ("got", "want"), [(INF, -INF), (NAN, INF), (INF, NAN), (1.0, INF), (-INF, 1.0)]
)
def test_infinities_must_agree_in_place_and_sign(got, want):
    right = answer()
    right[3, 0] = want
    wrong = right.clone()
    wrong[3, 0] = got
    mismatch = compare(wrong, right, LIVE, FP32).mismatch
    assert mismatch is not None and mismatch.kind == "non-finite" and mismatch.rows == (3,)


def test_infinities_that_agree_pass():
    want = answer()
    want[0, 0], want[1, 1] = INF, -INF
    assert compare(want.float(), want, LIVE, FP32).mismatch is None


@pytest.mark.parametrize("wrong", [1e-9, -1.0, NAN, INF])
def test_an_all_zero_reference_row_demands_zeros_up_to_the_absolute_floor(wrong):
    want = answer()
    want[2] = 0
    got = want.clone()
    assert compare(got, want, LIVE, FP32).mismatch is None
    got[2, 4] = FP32.floor * FP32.least_scale / 10
    assert compare(got, want, LIVE, FP32).mismatch is None
    got[2, 4] = wrong
    mismatch = compare(got, want, LIVE, FP32).mismatch
    assert mismatch is not None and mismatch.rows == (2,)


def test_rows_that_are_not_live_are_not_looked_at():
    want = answer()
    got = want.clone()
    got[3] = NAN
    comparison = compare(got, want, torch.tensor([True, True, True, False]), FP32)
    assert comparison.mismatch is None
    assert comparison.looked_at == 3 * 16


@pytest.mark.parametrize("shape", [(0, 16), (4, 0)])
def test_an_empty_tensor_is_nothing_looked_at(shape):
    empty = torch.zeros(shape, dtype=torch.float64)
    comparison = compare(empty, empty, torch.ones(shape[0], dtype=torch.bool), FP32)
    assert comparison.looked_at == 0 and comparison.mismatch is None


def test_no_live_row_is_nothing_looked_at():
    want = answer()
    assert compare(want, want, ~LIVE, FP32).looked_at == 0


def test_a_wrong_shape_is_a_mismatch_even_when_it_would_broadcast():
    want = answer()
    for got in (want[:1], want[:, :1], want[None], want.flatten()):
        mismatch = compare(got, want, LIVE, FP32).mismatch
        assert mismatch is not None and mismatch.kind == "shape"


@pytest.mark.parametrize("dtype", [torch.int32, torch.int64, torch.bool, torch.complex64])
def test_a_wrong_class_of_dtype_is_a_mismatch(dtype):
    want = answer().round()
    mismatch = compare(want.to(dtype), want, LIVE, FP32).mismatch
    assert mismatch is not None and mismatch.kind == "dtype"


def test_floats_where_integers_are_expected_are_a_mismatch():
    ids = torch.arange(8).reshape(4, 2)
    mismatch = compare(ids.double(), ids, LIVE, None).mismatch
    assert mismatch is not None and mismatch.kind == "dtype"


def test_integers_are_compared_exactly():
    ids = torch.arange(8, dtype=torch.int32).reshape(4, 2)
    assert compare(ids, ids.long(), LIVE, None).mismatch is None
    wrong = ids.clone()
    wrong[2, 1] += 1
    mismatch = compare(wrong, ids.long(), LIVE, None).mismatch
    assert mismatch is not None and mismatch.index == (2, 1)


def test_floats_without_a_bound_are_refused():
    with pytest.raises(ValueError, match="within a bound"):
        compare(answer(), answer(), LIVE, None)


def test_the_index_of_the_worst_element_is_that_of_the_whole_tensor():
    want = torch.randn(5, 2, 3, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    got = want.clone()
    got[4, 1, 2, 3] += 9
    mismatch = compare(got, want, torch.tensor([False, True, True, False, True]), FP32).mismatch
    assert (
        mismatch is not None
        and mismatch.index == (4, 1, 2, 3)
        and mismatch.rows == (4,)
        and mismatch.count == 1
    )


def test_an_element_of_one_ulp_off_is_within_and_of_many_is_not():
    exact = Bound("test", torch.bfloat16, ulps=1, floor=0, relative_l2=1, summary="")
    want = answer()
    ulp = 2.0 ** (torch.floor(torch.log2(want.abs())) - 7)
    assert compare(want + ulp * 0.99, want, LIVE, exact).mismatch is None
    mismatch = compare(want + ulp * 1.5, want, LIVE, exact).mismatch
    assert mismatch is not None and mismatch.excess == pytest.approx(1.5)


def test_fp8_tensors_can_be_compared():
    want = answer().to(torch.float8_e4m3fn).double()
    assert (
        compare(want.to(torch.float8_e4m3fn), want, LIVE, bound("write_kv.fp8_e4m3")).mismatch
        is None
    )


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_single_non_finite_element_is_found_whatever_the_bound(data):
    loose = Bound("loose", torch.bfloat16, ulps=1e9, floor=1e9, relative_l2=1e9, summary="")
    want = answer()
    got = want.clone()
    row, column = data.draw(st.integers(0, 3)), data.draw(st.integers(0, 15))
    got[row, column] = data.draw(st.sampled_from([NAN, INF, -INF]))
    mismatch = compare(got, want, LIVE, loose).mismatch
    assert mismatch is not None and mismatch.index == (row, column) and mismatch.excess == math.inf


def test_bits_see_what_values_do_not():
    zeros = torch.zeros(4, 2)
    mismatch = compare_bits(-zeros, zeros, LIVE).mismatch
    assert mismatch is not None and mismatch.kind == "bits" and mismatch.count == 8
    nan = torch.full((4, 2), NAN)
    assert compare_bits(nan, nan.clone(), LIVE).mismatch is None


def test_a_vector_is_compared_as_rows_of_one_element():
    vector = torch.tensor([1.0, 2.0, 3.0, 4.0])
    assert compare_bits(vector, vector.clone(), LIVE).mismatch is None
    wrong = compare_bits(vector, vector.roll(1), LIVE).mismatch
    assert wrong is not None and wrong.rows == (0, 1, 2, 3) and wrong.index == (0,)


def test_bits_of_other_shapes_or_dtypes_never_agree():
    zeros = torch.zeros(4, 2)
    assert compare_bits(zeros, zeros.bfloat16(), LIVE).mismatch is not None
    assert compare_bits(zeros, zeros.int(), LIVE).mismatch is not None
    assert compare_bits(zeros, torch.zeros(4, 3), LIVE).mismatch is not None


def test_bits_of_dead_rows_do_not_count():
    a, b = torch.zeros(4, 2), torch.zeros(4, 2)
    b[1] = 1
    live = torch.tensor([True, False, True, True])
    assert compare_bits(a, b, live).mismatch is None
    assert compare_bits(a, b, live).looked_at == 6


def test_strided_views_are_compared_by_their_elements():
    wide = torch.randn(4, 8)
    assert compare_bits(wide[:, ::2], wide[:, ::2].clone(), LIVE).mismatch is None


def test_blank_rows_are_those_with_one_value_unless_that_is_expected():
    tensor = answer().float()
    tensor[1] = 0
    tensor[2] = NAN
    assert blank_rows(tensor, LIVE) == (1, 2)
    want = answer()
    want[1] = 0
    assert blank_rows(tensor, LIVE, want) == (2,)
    assert blank_rows(torch.tensor([[1.0], [0.0], [NAN], [2.0]]), LIVE) == (2,)
    assert blank_rows(tensor, ~LIVE) == ()
    want[2] = NAN
    assert blank_rows(tensor, LIVE, want) == ()
