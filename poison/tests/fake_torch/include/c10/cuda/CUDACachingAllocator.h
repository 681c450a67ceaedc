// The part of torch's header that the list of free memory needs, with an allocator's answers and events made by tests.
#pragma once
#include <array>
#include <cstddef>
#include <functional>
#include <map>
#include <utility>
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
  bool is_large, is_expandable;
  std::vector<BlockInfo> blocks;
};

struct SnapshotInfo {
  std::vector<SegmentInfo> segments;
};

struct TraceEntry {
  enum Action {
    ALLOC, FREE_REQUESTED, FREE_COMPLETED, SEGMENT_ALLOC, SEGMENT_FREE, SEGMENT_MAP, SEGMENT_UNMAP, SNAPSHOT, OOM
  };
  Action action_;
  signed char device_;
  size_t addr_, size_;
};

struct Stat {
  long long current;
};

struct DeviceStats {
  std::array<Stat, 3> reserved_bytes{}, active_bytes{};
};

inline std::vector<SegmentInfo> segments;
inline std::vector<std::function<void(const TraceEntry&)>> trackers;
inline long long snapshots = 0;
inline bool calls_trackers = true;
inline std::vector<TraceEntry> meanwhile;  // Events of another thread, while a snapshot is taken.

inline void report(const TraceEntry& event) {
  if (calls_trackers)
    for (const auto& tracker : trackers) tracker(event);
}

inline SnapshotInfo snapshot() {
  snapshots++;
  report({TraceEntry::SNAPSHOT, 0, 0, 0});
  SnapshotInfo taken{segments};
  for (const auto& event : std::exchange(meanwhile, {})) report(event);
  return taken;
}

inline DeviceStats getDeviceStats(int device) {
  DeviceStats stats;
  for (const auto& segment : segments)
    for (const auto& block : segment.blocks) {
      if (segment.device != device) continue;
      stats.reserved_bytes[0].current += block.size;
      if (block.allocated || block.active) stats.active_bytes[0].current += block.size;
    }
  return stats;
}

inline void attachAllocatorTraceTracker(std::function<void(const TraceEntry&)> tracker) {
  trackers.push_back(std::move(tracker));
}

}  // namespace c10::cuda::CUDACachingAllocator

// What tests call.
namespace fake = c10::cuda::CUDACachingAllocator;

extern "C" inline __attribute__((used)) void fake_clear() {
  fake::segments.clear();
  fake::meanwhile.clear();
}

extern "C" inline __attribute__((used)) void fake_segment(
    int device, size_t address, size_t stream, bool is_large, bool is_expandable) {
  fake::segments.push_back({(signed char)device, address, (void*)stream, is_large, is_expandable, {}});
}

extern "C" inline __attribute__((used)) void fake_block(size_t size, bool allocated, bool active) {
  fake::segments.back().blocks.push_back({size, allocated, active});
}

extern "C" inline __attribute__((used)) void fake_event(int action, int device, size_t address, size_t size) {
  fake::report({(fake::TraceEntry::Action)action, (signed char)device, address, size});
}

extern "C" inline __attribute__((used)) void fake_meanwhile(int action, int device, size_t address, size_t size) {
  fake::meanwhile.push_back({(fake::TraceEntry::Action)action, (signed char)device, address, size});
}

extern "C" inline __attribute__((used)) void fake_silence(bool silent) { fake::calls_trackers = !silent; }

extern "C" inline __attribute__((used)) long long fake_snapshots() { return fake::snapshots; }
