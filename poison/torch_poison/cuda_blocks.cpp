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
