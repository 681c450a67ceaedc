"""An alias shares the bytes of a tensor and keeps them, not the tensor."""

from __future__ import annotations

import torch

from harness.memory.graph.interface import alias_of


def test_an_alias_has_the_shape_and_strides_of_its_tensor_on_the_same_bytes() -> None:
    view = torch.arange(24.0).view(4, 6)[1:3, ::2]
    alias = alias_of(view)
    assert (
        alias.shape == view.shape
        and alias.stride() == view.stride()
        and alias.data_ptr() == view.data_ptr()
    )
    view.zero_()
    assert not bool(alias.any())


def test_an_alias_outlives_a_tensor_that_is_resized_away() -> None:
    tensor = torch.ones(5)
    alias = alias_of(tensor)
    del tensor
    assert alias.tolist() == [1.0] * 5
