"""The Triton scan equals the CPU's, bit for bit. Run by test_scan.py under TRITON_INTERPRET=1."""

from __future__ import annotations

import pytest
import torch
from torch_poison.patterns import EXPONENT, bits_view

from harness.memory.first_nan.latch import DTYPES
from harness.memory.first_nan.table import BUFFERS, Table
from harness.memory.triton_interpreter import prepare

assert prepare(), "set TRITON_INTERPRET=1"


def bad_values(dtype: torch.dtype, rows: int, width: int) -> tuple[torch.Tensor, int]:
    """Values [rows, width] with two bad elements, and the limit that makes them bad where they are
    integers.
    """
    generator = torch.Generator().manual_seed(rows * width)
    if dtype.is_floating_point:
        value = torch.randn(rows, width, generator=generator).to(dtype)
        bits_view(value)[1, 3] = EXPONENT[dtype]
        bits_view(value)[-1, -1] = EXPONENT[dtype] | 1
        return value, -1
    value = torch.randint(0, 9, (rows, width), generator=generator).to(dtype)
    value[1, 3], value[-1, 0] = -5, 9
    return value, 9


@pytest.mark.parametrize(
    "rows, width, live", [(5, 7, -1), (3, 2000, 2), (9, 1000, 0), (4, 3000, 4), (3, 5, 99)]
)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_triton_scan_equals_the_cpus(
    dtype: torch.dtype, rows: int, width: int, live: int
) -> None:
    from harness.memory.first_nan.triton_scan import scan

    value, limit = bad_values(dtype, rows, width)
    good = torch.zeros_like(value)
    strided = torch.cat((value, good), dim=1)[:, :width]
    here, there = Table(torch.device("cpu"), 4, 3), Table(torch.device("cpu"), 4, 3)
    for table in (here, there):
        table.live.fill_(live)
    for step in range(3):
        for slot in (2, 1):
            given = good if (step, slot) == (0, 2) else strided
            for table, function in ((here, torch.ops.mla_harness.watch), (there, scan)):
                table.set_clock(step, "decode")
                function(
                    [given],
                    table.live,
                    table.clock,
                    table.latches,
                    table.first,
                    table.events,
                    table.count,
                    [slot],
                    [limit],
                )
    for name in BUFFERS:
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    assert int(here.count[0]) == (0 if live == 0 else 5)


@pytest.mark.parametrize("bad", [(), (0,), (1,), (2,), (0, 2), (0, 1, 2)], ids=str)
def test_results_of_one_op_are_noted_as_if_each_had_a_launch_of_its_own(
    bad: tuple[int, ...],
) -> None:
    from harness.memory.first_nan.triton_scan import scan

    kinds = ((torch.bfloat16, 5000), (torch.float32, 16), (torch.int32, 8))
    values, limits = [], []
    for number, (dtype, width) in enumerate(kinds):
        value, limit = bad_values(dtype, 6, width)
        values.append(value if number in bad else torch.zeros_like(value))
        limits.append(limit)
    here, there = Table(torch.device("cpu"), 4, 8), Table(torch.device("cpu"), 4, 8)
    for table, function in ((here, torch.ops.mla_harness.watch), (there, scan)):
        table.set_clock(3, "decode")
        function(
            values,
            table.live,
            table.clock,
            table.latches,
            table.first,
            table.events,
            table.count,
            [2, 0, 1],
            limits,
        )
    for name in BUFFERS:
        assert torch.equal(getattr(here, name), getattr(there, name)), name
    assert int(here.count[0]) == len(bad)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float8_e4m3fn], ids=str)
def test_a_look_at_words_tells_each_value_that_is_not_finite_from_all_others(
    dtype: torch.dtype,
) -> None:
    from torch_poison.cuda_kernels import any_not_finite

    every = torch.arange(1 << 8 * dtype.itemsize, dtype=torch.int32).to(
        bits_view(torch.zeros(1).to(dtype)).dtype
    )
    is_finite = every.view(dtype).float().isfinite()
    assert not any_not_finite(every[is_finite], EXPONENT[dtype])
    for bits in every[~is_finite][::61]:
        # Odd lengths are read by elements, the others by words.
        for length, place in ((5, 3), (8, 5)):
            values = torch.zeros(length, dtype=every.dtype)
            values[place] = bits
            assert any_not_finite(values, EXPONENT[dtype])
