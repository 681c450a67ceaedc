"""The free blocks of torch's caching allocator, listed by a few lines of C++ in tens of microseconds.

Python's way to the same list, torch's snapshot, makes a dictionary of every block: about 1 us a block, live ones
included. It is used where the C++ cannot be compiled, and a log message says so. Both read one snapshot of the
allocator, so both see splits, merges, graph pools and blocks that another stream still uses ("pending free") alike.
"""

from __future__ import annotations

import ctypes
import functools
import gc
import hashlib
import logging
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch
import triton
from triton.runtime.cache import get_cache_manager

SOURCE = r"""
#include <c10/cuda/CUDACachingAllocator.h>

// Writes address, size and stream of the first `capacity` free blocks. Returns the number of all free blocks.
extern "C" long long list_free(int device, long long capacity, long long* out) {
  long long count = 0;
  for (const auto& segment : c10::cuda::CUDACachingAllocator::snapshot().segments) {
    if (segment.device != device) continue;
    long long address = segment.address;
    for (const auto& block : segment.blocks) {
      // A block that is pending free is active, though not allocated.
      if (!block.allocated && !block.active && count++ < capacity) {
        *out++ = address;
        *out++ = block.size;
        *out++ = (long long)segment.stream;
      }
      address += block.size;
    }
  }
  return count;
}
"""


def free_blocks(device: int) -> tuple[np.ndarray, np.ndarray, set[int]]:
    """Addresses and sizes in bytes (int64) of the free blocks of `device`, and the streams that own them."""
    library = compiled()
    blocks = by_snapshot(device) if library is None else by_library(library, device)
    return blocks[:, 0], blocks[:, 1], set(blocks[:, 2].tolist())


def by_library(library: Any, device: int) -> np.ndarray:
    """Address, size and stream of the free blocks of `device`, int64 [n, 3], by the compiled function."""
    capacity = 1 << 12
    while True:
        found = np.empty((capacity, 3), dtype=np.int64)
        count = library.list_free(device, capacity, found.ctypes.data)
        if count <= capacity:
            return found[:count]
        capacity = 2 * count


def by_snapshot(device: int) -> np.ndarray:
    """The same list by torch's snapshot."""
    # The list has tens of thousands of short-lived objects, and the collector would visit all of them.
    was_collecting = gc.isenabled()
    gc.disable()
    try:
        found = [
            (block["address"], block["size"], segment["stream"])
            for segment in torch._C._cuda_memorySnapshot(None)["segments"]
            if segment["device"] == device
            for block in segment["blocks"]
            if block["state"] == "inactive"
        ]
    finally:
        if was_collecting:
            gc.enable()
    return np.asarray(found, dtype=np.int64).reshape(-1, 3)


@functools.cache
def compiled() -> Any:
    """The library of `list_free`, compiled on first use and kept in Triton's cache. None if it cannot be compiled."""
    torch_dir = Path(torch.__file__).parent
    key = hashlib.sha256(f"{SOURCE} {torch.__version__} {torch_dir}".encode()).hexdigest()
    cache = get_cache_manager(key)
    try:
        path = cache.get_file("list_free.so") or cache.put(build(torch_dir), "list_free.so", binary=True)
        library = ctypes.CDLL(path)
        library.list_free.argtypes = [ctypes.c_int, ctypes.c_longlong, ctypes.c_void_p]
        library.list_free.restype = ctypes.c_longlong
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()[:500]
        logging.getLogger(__name__).warning("free CUDA blocks are listed by torch's slower snapshot: %s", reason)
        return None
    return library


def build(torch_dir: Path, *extra: str) -> bytes:
    """Compile SOURCE. Raises OSError without g++, SubprocessError if it fails. `extra` are arguments for g++."""
    options = [
        *("g++", "-x", "c++", "-std=c++20", "-O2", "-shared", "-fPIC", "-"),
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *extra,
        f"-I{torch_dir / 'include'}",
        f"-I{Path(triton.__file__).parent / 'backends/nvidia/include'}",
        *(f"-L{torch_dir / 'lib'}", "-lc10_cuda", "-lc10"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "list_free.so")
        subprocess.run(
            [*options, "-o", str(built)], input=SOURCE, capture_output=True, text=True, check=True, timeout=120
        )
        return built.read_bytes()
