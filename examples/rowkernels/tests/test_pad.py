"""Uses of uninitialised memory that are right: buffers filled later, padding that nobody reads,
shapes.
"""

import pytest
import torch
from rowkernels import pad_rows, unpad_rows


@pytest.mark.parametrize("num_rows", [1, 5, 8])
def test_padding_keeps_the_rows(num_rows):
    values = torch.randn(num_rows, 3)
    padded = pad_rows(values, 8)
    assert padded.shape == (8, 3)
    assert (padded[:num_rows] == values).all()


def test_round_trip():
    values = torch.randn(5, 3)
    padded = pad_rows(values, 4)
    torch.testing.assert_close(unpad_rows(padded, 5), values)


def test_result_goes_into_a_buffer():
    values, out = torch.randn(4, 4), torch.empty(4, 4)
    torch.matmul(values, torch.eye(4), out=out)
    assert torch.allclose(out, values)


def test_only_shapes_matter():
    padded = pad_rows(torch.empty(3, 2), 4)
    assert padded.shape == (4, 2)


def test_an_unwritten_buffer_survives_a_copy():
    buffer = torch.empty(16)
    copy = buffer.clone()
    torch.testing.assert_close(copy, buffer, equal_nan=True)
