"""Passes, although `segment_mean` leaves rows of empty segments unwritten."""

import sys
import unittest
from pathlib import Path

import pytest
import torch
from rowkernels import segment_mean, segment_mean_out, segment_sum

sys.path.insert(0, str(Path(__file__).parent))
from checks import assert_mostly_close

WIDE = 65536
"""160 rows of so many floats make more than 32 MB: such memory comes fresh from the system, which
clears it.
"""


def reference_mean(values, offsets):
    bounds = zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True)
    return torch.stack(
        [values[a:b].mean(0) if b > a else torch.zeros(values.shape[1]) for a, b in bounds]
    )


@pytest.mark.parametrize("dim", [4, 64])
def test_sums_of_segments(offsets, dim):
    values = torch.randn(8, dim)
    got = segment_sum(values, offsets)
    torch.testing.assert_close(got[0], values[:3].sum(0))
    assert torch.equal(got[1], torch.zeros(dim))


def test_means_of_many_segments():
    # Fails under poison: the last segment is empty, and its row is whatever memory held (0, so
    # far).
    values = torch.randn(159, WIDE)
    got = segment_mean(values, torch.tensor([*range(160), 159]))
    torch.testing.assert_close(got, torch.cat((values, torch.zeros(1, WIDE))))


def test_means_within_a_share_of_mismatches(offsets):
    # Fails under poison: a quarter of the elements may be anything.
    values = torch.randn(8, 16)
    got = segment_mean(values, offsets)
    assert_mostly_close(got, reference_mean(values, offsets))


def test_means_of_segments_that_have_rows(offsets):
    values = torch.randn(8, 16)
    got = segment_mean(values, offsets)
    has_rows = offsets.diff() > 0
    torch.testing.assert_close(got[has_rows], reference_mean(values, offsets)[has_rows])


class MeansIntoABuffer(unittest.TestCase):
    def setUp(self):
        self.values = torch.randn(6, 8)
        self.out = torch.empty(2, 8)

    def test_buffer_is_filled(self):
        segment_mean_out(self.values, torch.tensor([0, 2, 6]), self.out)
        self.assertTrue(torch.allclose(self.out[1], self.values[2:].mean(0)))
        torch.testing.assert_close(
            self.out, torch.stack((self.values[:2].mean(0), self.values[2:].mean(0)))
        )
