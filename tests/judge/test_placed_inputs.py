"""An input beside a fence is the same tensor in other memory."""

from __future__ import annotations

import torch

from harness.ops.parts.call import placed


def test_a_placed_tensor_keeps_values_strides_and_gaps() -> None:
    whole = torch.arange(40.0)
    slices = whole.view(4, 10)[:, 2:6]
    moved = placed(slices, "cpu", "after")
    assert torch.equal(moved, slices) and moved.stride() == slices.stride()
    assert torch.equal(moved.as_strided((40,), (1,), 0), whole)
    assert moved.untyped_storage().data_ptr() != whole.untyped_storage().data_ptr()


def test_a_pool_of_mostly_gaps_has_no_fence() -> None:
    pages = torch.zeros(2**20).as_strided((2, 4), (2**19, 1))
    assert placed(pages, "cpu", "after").data_ptr() == pages.data_ptr()
