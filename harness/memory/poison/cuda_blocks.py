"""The free memory of torch's caching allocator, cut into chunks by a few lines of C++ in tens of microseconds.

The C++ follows the allocator's events, which reach trace trackers with or without a recorded history. It reads a
snapshot at first, after each change of segments, and always from a torch that reports no events. ALLOC has only the
requested size, so the C++ repeats the allocator's rule of splits. Each list compares the free bytes with the counters
of the allocator: settings can take from what the rule finds free, never add. If they differ, a snapshot is read.

Where the C++ cannot be compiled, a log message says so, and torch's snapshot is used: a dictionary of every block, 1 us
each. Both see splits, merges, graph pools and blocks that another stream still uses ("pending free") alike.
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

SOURCE = r"""
#include <c10/cuda/CUDACachingAllocator.h>
#include <array>
#include <map>
#include <mutex>
#include <set>

namespace allocator = c10::cuda::CUDACachingAllocator;
using Event = allocator::TraceEntry;

struct Block {
  size_t size, segment;
  void* stream;
  size_t most_unsplit;  // A remainder becomes a free block only if it is larger than this.
};

// The blocks of one device. The allocator calls the tracker under its own lock, so nothing calls it under `mutex`.
struct Blocks {
  std::mutex mutex;
  bool known = false;
  size_t events = 0, free_bytes = 0;
  std::map<size_t, Block> free, live;

  void take(size_t address, size_t requested) {
    auto found = free.extract(address);
    size_t size = std::max<size_t>((requested + 511) / 512, 1) * 512;
    if (!found || found.mapped().size < size) return void(known = false);
    Block block = found.mapped(), rest = block;
    rest.size -= size;
    if (rest.size > rest.most_unsplit) free.emplace(address + size, rest), block.size = size;
    free_bytes -= block.size;
    live[address] = block;
  }

  void give(size_t address) {
    auto found = live.extract(address);
    if (!found) return void(known = false);
    free_bytes += found.mapped().size;
    auto at = free.emplace(address, found.mapped()).first;
    join(at);
    if (at != free.begin()) join(std::prev(at));
  }

  void join(std::map<size_t, Block>::iterator at) {
    auto next = std::next(at);
    auto& [address, block] = *at;
    if (next == free.end() || next->first != address + block.size || next->second.segment != block.segment) return;
    block.size += next->second.size;
    free.erase(next);
  }

  void read(const std::vector<allocator::SegmentInfo>& segments, int device) {
    free.clear(), live.clear(), free_bytes = 0;
    for (const auto& segment : segments) {
      if (segment.device != device) continue;
      size_t address = segment.address, most_unsplit = segment.is_large && !segment.is_expandable ? 1 << 20 : 0;
      for (const auto& block : segment.blocks) {
        // A block that is pending free is active, though not allocated.
        bool is_free = !block.allocated && !block.active;
        (is_free ? free : live).emplace(address, Block{block.size, segment.address, segment.stream, most_unsplit});
        free_bytes += is_free * block.size;
        address += block.size;
      }
    }
  }
};

static auto& devices = *new std::array<Blocks, 128>;  // Never destroyed: tensors are freed until the process is gone.
static thread_local bool heard;

static void track(const Event& event) {
  heard = true;
  if (event.action_ == Event::FREE_REQUESTED || event.action_ == Event::SNAPSHOT || event.action_ == Event::OOM) return;
  auto& blocks = devices.at(event.device_);
  std::lock_guard<std::mutex> lock(blocks.mutex);
  blocks.events++;
  if (!blocks.known) return;
  if (event.action_ == Event::ALLOC) return blocks.take(event.addr_, event.size_);
  event.action_ == Event::FREE_COMPLETED ? blocks.give(event.addr_) : void(blocks.known = false);
}

// Locks the blocks as they are now. If other threads allocate meanwhile, it tries again, and at last takes a snapshot.
static std::unique_lock<std::mutex> current(int device) {
  auto& blocks = devices.at(device);
  std::unique_lock<std::mutex> lock(blocks.mutex);
  for (int tries = 8;; tries--) {
    auto [events, known] = std::pair(blocks.events, blocks.known);
    lock.unlock();
    auto stats = allocator::getDeviceStats(device);
    heard = false;  // A snapshot is an event too, so a torch that calls no trackers is noticed.
    auto segments = known ? std::vector<allocator::SegmentInfo>() : allocator::snapshot().segments;
    lock.lock();
    bool is_same = events == blocks.events;
    if (!is_same && tries > 0) continue;
    if (!known) {
      blocks.read(segments, device);
      blocks.known = is_same && heard;
      return lock;
    }
    size_t active = stats.active_bytes[0].current, reserved = stats.reserved_bytes[0].current;
    if (is_same && reserved - active == blocks.free_bytes) return lock;
    blocks.known = false;
  }
}

// Writes address and size of chunks of `least` bytes or, for about `most` chunks, of more. If they are more than
// `capacity`, the rest and the streams are left out. `found`: numbers of chunks, blocks, bytes, streams; the streams.
extern "C" void list_chunks(int device, size_t least, size_t most, size_t capacity, size_t* table, size_t* found) {
  [[maybe_unused]] static bool attached = (allocator::attachAllocatorTraceTracker(track), true);
  auto lock = current(device);
  const auto& blocks = devices[device];
  while (blocks.free_bytes / least > most) least *= 2;
  std::set<void*> streams;
  size_t count = 0;
  for (const auto& [address, block] : blocks.free) {
    streams.insert(block.stream);
    for (size_t offset = 0; offset < block.size; offset += least)
      if (count++ < capacity) *table++ = address + offset, *table++ = std::min(least, block.size - offset);
  }
  for (size_t total : {count, blocks.free.size(), blocks.free_bytes, streams.size()}) *found++ = total;
  if (count <= capacity) std::copy(streams.begin(), streams.end(), (void**)found);
}
"""


def list_chunks(device: int, table: np.ndarray) -> tuple[int, int, int, set[int]]:
    """Cut the free memory of `device` into about MAX_CHUNKS chunks: table [capacity, 2] int64, address and bytes.

    Returns the numbers of chunks, blocks and bytes, and the owning streams. More chunks than rows: both are incomplete.
    """
    if (library := compiled()) is not None:
        found = np.empty(4 + len(table), dtype=np.int64)
        library.list_chunks(device, CHUNK_BYTES, MAX_CHUNKS, len(table), table.ctypes.data, found.ctypes.data)
        num_chunks, num_blocks, num_bytes, num_streams = found[:4].tolist()
        return num_chunks, num_blocks, num_bytes, set(found[4 : 4 + num_streams].tolist())
    blocks = by_snapshot(device)
    num_bytes = int(blocks[:, 1].sum())
    size = max(CHUNK_BYTES, 1 << (num_bytes // MAX_CHUNKS).bit_length())
    chunks = [(at + i, min(size, n - i)) for at, n in blocks[:, :2].tolist() for i in range(0, n, size)]
    table[: len(chunks)] = np.asarray(chunks, dtype=np.int64).reshape(-1, 2)[: len(table)]
    return len(chunks), len(blocks), num_bytes, set(blocks[:, 2].tolist())


def by_snapshot(device: int) -> np.ndarray:
    """Address, size and stream of the free blocks of `device`, int64 [n, 3], by torch's snapshot."""
    found = [
        (block["address"], block["size"], segment["stream"])
        for segment in torch._C._cuda_memorySnapshot(None)["segments"]
        if segment["device"] == device
        for block in segment["blocks"]
        if block["state"] == "inactive"
    ]
    return np.asarray(found, dtype=np.int64).reshape(-1, 3)


@functools.cache
def compiled() -> Any:
    """The library of `list_chunks`, compiled on first use and kept in Triton's cache. None if it cannot be compiled."""
    torch_dir = Path(torch.__file__).parent
    key = hashlib.sha256(f"{SOURCE} {torch.__version__} {torch_dir}".encode()).hexdigest()
    cache = get_cache_manager(key)
    try:
        path = cache.get_file("list_chunks.so") or cache.put(build(torch_dir), "list_chunks.so", binary=True)
        library = ctypes.CDLL(path)
        library.list_chunks.argtypes = [ctypes.c_int, *[ctypes.c_size_t] * 3, *[ctypes.c_void_p] * 2]
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
        built = Path(folder, "list_chunks.so")
        subprocess.run(
            [*options, "-o", str(built)], input=SOURCE, capture_output=True, text=True, check=True, timeout=120
        )
        return built.read_bytes()
