"""The memory behind a tensor is seen whole."""

from __future__ import annotations

import torch
from torch_poison.storages import whole_storage


def test_all_memory_of_a_strided_view_is_seen_as_one_stretch() -> None:
    tensor = torch.arange(24.0).view(4, 6)
    whole = whole_storage(tensor[1:3, ::2])
    assert whole.shape == (24,) and whole.data_ptr() == tensor.data_ptr()
