// The part of torch's header that the list of free blocks needs, with a snapshot made by hand.
#pragma once
#include <cstddef>
#include <cstdlib>
#include <vector>

namespace c10::cuda::CUDACachingAllocator {

struct BlockInfo {
  size_t size;
  bool allocated, active;
};

struct SegmentInfo {
  signed char device;
  size_t address;
  void* stream;
  std::vector<BlockInfo> blocks;
};

struct SnapshotInfo {
  std::vector<SegmentInfo> segments;
};

inline SnapshotInfo snapshot() {
  const BlockInfo live{512, true, true}, pending{1024, false, true}, free{2048, false, false};
  SnapshotInfo all{{
      {0, 0x7f0000000000, nullptr, {live, free, pending, free}},
      {1, 0x7f1000000000, nullptr, {free}},
      {0, 0x7f2000000000, (void*)0x55d0, {free}},
      {0, 0x7f3000000000, (void*)0x66d0, {live}},
  }};
  const char* more = std::getenv("FAKE_FREE_BLOCKS");
  all.segments.push_back({2, 0x100000, nullptr, std::vector<BlockInfo>(more ? std::atoi(more) : 0, free)});
  return all;
}

}  // namespace c10::cuda::CUDACachingAllocator
