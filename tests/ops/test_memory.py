"""Index checks feel an index as the hardware would."""

from __future__ import annotations

import pytest
import torch

from harness.errors import IllegalAddress
from harness.ops.memory import check_indices
from harness.poison.sentinels import OUT_OF_RANGE


@pytest.mark.parametrize("bad", [-1, 4, OUT_OF_RANGE, -(2**31)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_index_outside_the_tensor_is_an_illegal_address_and_named(bad: int, dtype: torch.dtype) -> None:
    indices = torch.tensor([[0, 3], [bad, 1]], dtype=dtype)
    with pytest.raises(IllegalAddress, match=rf"block_table: index {bad} at \[1, 0\] is outside \[0, 4\)"):
        check_indices(indices, 4, "block_table")


def test_indices_in_range_come_back_wide_and_unchanged() -> None:
    indices = torch.tensor([0, 3, 2], dtype=torch.int32)
    assert torch.equal(check_indices(indices, 4, "slots"), torch.tensor([0, 3, 2]))


def test_no_index_is_always_in_range() -> None:
    assert check_indices(torch.empty(0, dtype=torch.int32), 0, "slots").numel() == 0
