"""The free memory of torch's caching allocator, cut into chunks by a few lines of C++ in tens of
microseconds.

The C++ follows the allocator's events, which reach trace trackers with or without a recorded
history. It reads a snapshot at first, after each change of segments, and always from a torch that
reports no events. ALLOC has only the requested size, so the C++ repeats the allocator's rule of
splits. Each list compares the free bytes with the counters of the allocator: settings can take from
what the rule finds free, never add. If they differ, a snapshot is read.

Where the C++ cannot be compiled, a log message says so, and torch's snapshot is used: a dictionary
of every block, 1 us each. Both see splits, merges, graph pools and blocks that another stream still
uses ("pending free") alike.
"""

from __future__ import annotations

import ctypes
import functools
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

CHUNK_BYTES = 1 << 17
"""The least bytes for one program of the fill. Programs get more if the table would be too long."""
MAX_CHUNKS = 1 << 12

SOURCE = Path(__file__).with_suffix(".cpp").read_text(encoding="utf-8")


def list_chunks(device: int, table: np.ndarray) -> tuple[int, int, int, set[int]]:
    """Cut the free memory of `device` into about MAX_CHUNKS chunks: table [capacity, 2] int64,
    address and bytes.

    Returns the numbers of chunks, blocks and bytes, and the owning streams. More chunks than rows:
    both are incomplete.
    """
    if (library := compiled()) is not None:
        found = np.empty(4 + len(table), dtype=np.int64)
        library.list_chunks(
            device, CHUNK_BYTES, MAX_CHUNKS, len(table), table.ctypes.data, found.ctypes.data
        )
        num_chunks, num_blocks, num_bytes, num_streams = found[:4].tolist()
        return num_chunks, num_blocks, num_bytes, set(found[4 : 4 + num_streams].tolist())
    blocks = by_snapshot(device)
    num_bytes = int(blocks[:, 1].sum())
    # A power of two, so that each chunk begins at a multiple of 512 bytes, as the fill assumes.
    size = max(CHUNK_BYTES, 1 << (num_bytes // MAX_CHUNKS).bit_length())
    chunks = [
        (at + i, min(size, n - i)) for at, n in blocks[:, :2].tolist() for i in range(0, n, size)
    ]
    table[: len(chunks)] = np.asarray(chunks, dtype=np.int64).reshape(-1, 2)[: len(table)]
    return len(chunks), len(blocks), num_bytes, set(blocks[:, 2].tolist())


def by_snapshot(device: int) -> np.ndarray:
    """Address, size and stream of the free blocks of `device`, int64 [n, 3], by torch's
    snapshot.
    """
    found = [
        (block["address"], block["size"], segment["stream"])
        for segment in torch._C._cuda_memorySnapshot(None)["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        # Blocks "active_pending_free" are still used by other streams and are left alone.
        if block["state"] == "inactive"
    ]
    return np.asarray(found, dtype=np.int64).reshape(-1, 3)


@functools.cache
def compiled() -> Any:
    """The library of `list_chunks`, compiled on first use and kept in Triton's cache.

    None if it cannot be compiled.
    """
    torch_dir = Path(torch.__file__).parent
    # The library uses C++ of this torch, so another torch at another place needs another one.
    key = hashlib.sha256(f"{SOURCE} {torch.__version__} {torch_dir}".encode()).hexdigest()
    cache = get_cache_manager(key)
    try:
        path = cache.get_file("list_chunks.so") or cache.put(
            build(torch_dir), "list_chunks.so", binary=True
        )
        library = ctypes.CDLL(path)
        library.list_chunks.argtypes = [
            ctypes.c_int,
            *[ctypes.c_size_t] * 3,
            *[ctypes.c_void_p] * 2,
        ]
    except (OSError, subprocess.SubprocessError) as error:
        reason = str(getattr(error, "stderr", None) or error).strip()[:500]
        logging.getLogger(__name__).warning(
            "free CUDA blocks are listed by torch's slower snapshot: %s", reason
        )
        return None
    return library


def build(torch_dir: Path, *extra: str) -> bytes:
    """Compile SOURCE.

    Raises OSError without g++, SubprocessError if it fails. `extra` are arguments for g++.
    """
    options = [
        *("g++", "-x", "c++", "-std=c++20", "-O2", "-shared", "-fPIC", "-"),
        # As torch was built: by the other ABI its functions that take a `std::string` have other
        # names.
        f"-D_GLIBCXX_USE_CXX11_ABI={int(torch.compiled_with_cxx11_abi())}",
        *extra,
        f"-I{torch_dir / 'include'}",
        # Triton brings the headers of CUDA. The machine need not have the toolkit.
        f"-I{Path(triton.__file__).parent / 'backends/nvidia/include'}",
        *(f"-L{torch_dir / 'lib'}", "-lc10_cuda", "-lc10"),
    ]
    with tempfile.TemporaryDirectory() as folder:
        built = Path(folder, "list_chunks.so")
        subprocess.run(
            [*options, "-o", str(built)],
            input=SOURCE,
            capture_output=True,
            text=True,
            check=True,
            timeout=1200,
        )
        return built.read_bytes()
