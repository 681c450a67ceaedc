"""Memory at a fence: every byte of it can be used, and the next one ends the process."""

from __future__ import annotations

import ctypes
import math
import signal
import subprocess
import sys

import pytest
import torch
from torch_poison.fences import ALIGNMENT, fenced

READ = """
import ctypes
from torch_poison.fences import fenced
tensor = fenced({size}, {fence!r}, "cpu")
print(ctypes.c_ubyte.from_address(tensor.data_ptr() + {offset}).value, flush=True)
"""


@pytest.mark.first(2)
@pytest.mark.parametrize(
    ("fence", "size", "offset", "code"),
    [
        pytest.param("after", 32, 31, 0, marks=pytest.mark.nightly),
        ("after", 32, 32, -signal.SIGSEGV),
        pytest.param("after", 33, 48, -signal.SIGSEGV, marks=pytest.mark.nightly),
        pytest.param("after", 20, 23, 0, marks=pytest.mark.nightly),
        ("exact", 20, 19, 0),
        ("exact", 20, 20, -signal.SIGSEGV),
        pytest.param("exact", 33, 33, -signal.SIGSEGV, marks=pytest.mark.nightly),
        ("before", 32, 0, 0),
        ("before", 32, -1, -signal.SIGSEGV),
    ],
)
def test_a_read_past_the_fence_ends_the_process(
    fence: str, size: int, offset: int, code: int
) -> None:
    program = READ.format(size=size, fence=fence, offset=offset)
    assert subprocess.run([sys.executable, "-c", program], capture_output=True).returncode == code


@pytest.mark.parametrize("size", [1, 20, 4096, 10_000])
def test_fenced_memory_is_aligned_and_writable(size: int) -> None:
    memory = fenced(size, "after", "cpu")
    memory.fill_(7)
    assert (
        memory.shape == (size,)
        and memory.data_ptr() % ALIGNMENT == 0
        and int(memory.sum()) == 7 * size
    )


@pytest.mark.parametrize("fence", ["before", "after", "exact"])
def test_a_view_of_the_storage_stays_at_the_fence(fence: str) -> None:
    """`as_strided` with an offset counts from the storage, not from the tensor."""
    memory = fenced(32, fence, "cpu")  # type: ignore[arg-type]
    assert memory.untyped_storage().nbytes() == 32
    assert memory.as_strided((32,), (1,), 0).data_ptr() == memory.data_ptr()


def test_what_a_kernel_reads_between_its_input_and_the_fence_is_no_number() -> None:
    """Five float32 end 12 bytes before the page (flashinfer-ai/flashinfer#4525)."""
    sinks = fenced(20, "after", "cpu").view(torch.float32)
    behind = (ctypes.c_float * 3).from_address(sinks.data_ptr() + 20)
    assert all(math.isnan(value) for value in behind)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int32])
def test_an_exact_fence_keeps_the_elements_of_a_type_apart(dtype: torch.dtype) -> None:
    memory = fenced(5 * dtype.itemsize, "exact", "cpu").view(dtype)
    memory.fill_(3)
    assert memory.tolist() == [3] * 5
