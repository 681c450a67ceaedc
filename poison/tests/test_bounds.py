"""Index checks feel an index as the hardware would."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch_poison import bounds as memory
from torch_poison.bounds import check_indices
from torch_poison.errors import IllegalAddress
from torch_poison.patterns import OUT_OF_RANGE


@pytest.mark.parametrize("bad", [-1, 4, OUT_OF_RANGE, -(2**31)])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_an_index_outside_the_tensor_is_an_illegal_address_and_named(
    bad: int, dtype: torch.dtype
) -> None:
    indices = torch.tensor([[0, 3], [bad, 1]], dtype=dtype)
    with pytest.raises(
        IllegalAddress, match=rf"block_table: index {bad} at \[1, 0\] is outside \[0, 4\)"
    ):
        check_indices(indices, 4, "block_table")


@pytest.mark.parametrize("indices", [[0, 5, -1], [0, -1, 5]])
def test_the_first_bad_index_is_named_whichever_end_it_is_past(indices: list[int]) -> None:
    with pytest.raises(IllegalAddress, match=rf"slots: index {indices[1]} at \[1\] is outside"):
        check_indices(torch.tensor(indices), 4, "slots")


def test_indices_in_range_come_back_wide_and_unchanged() -> None:
    indices = torch.tensor([0, 3, 2], dtype=torch.int32)
    assert torch.equal(check_indices(indices, 4, "slots"), torch.tensor([0, 3, 2]))


def test_no_index_is_always_in_range() -> None:
    assert check_indices(torch.empty(0, dtype=torch.int32), 0, "slots").numel() == 0


def test_a_verdict_is_told_once_also_where_the_device_is_lost_by_then(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class Lost(torch.Tensor):
        def zero_(self) -> torch.Tensor:
            raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr(memory, "_verdicts", memory.Verdicts())
    assert memory.bad_index() is None
    flags = torch.zeros(2, dtype=torch.bool)
    failed = torch.zeros(2, dtype=torch.bool).as_subclass(Lost)
    verdicts = memory.Verdicts(flags, failed)
    monkeypatch.setattr(memory, "_verdicts", verdicts)
    for what, size in (("expert ids", 8), ("block_table", 4)):
        verdicts.note(torch.zeros(1, dtype=torch.bool), size, what)
    flags[1] = True
    with pytest.raises(IllegalAddress, match=r"block_table: index outside \[0, 4\)"):
        memory.raise_bad_indices()
    assert memory.bad_index() is None


def test_a_check_keeps_its_name_however_many_sizes_a_session_has_seen() -> None:
    flags, failed = torch.zeros(2, memory.MAX_CHECKS, dtype=torch.bool)
    verdicts = memory.Verdicts(flags, failed)
    good, bad = torch.tensor([False]), torch.tensor([True])
    for size in range(2 * memory.MAX_CHECKS):
        verdicts.note(good, size, "metadata.work request")
        verdicts.note(bad if size == 99 else good, size, "block_table")
    found = verdicts.take_first()
    assert found is not None and str(found).startswith("block_table: index outside")


def test_a_check_on_a_cpu_is_seen_by_no_dispatch_mode_but_for_its_result() -> None:
    class Seen(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()  # type: ignore[no-untyped-call]
            self.ops: list[str] = []

        def __torch_dispatch__(
            self, func: Any, types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            self.ops.append(str(func))
            return func(*args, **(kwargs or {}))

    indices = torch.tensor([0, 3, 2], dtype=torch.int32)
    with Seen() as seen:
        check_indices(indices, 4, "slots")
    assert seen.ops == ["aten._to_copy.default"]
