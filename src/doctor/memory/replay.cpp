#include "doctor/memory/replay.h"

#include <algorithm>
#include <map>

#include "doctor/memory/levels.h"
#include "runtime/executor.h"
#include "runtime/memory/size_class.h"
#include "segfuse/error.h"

namespace segfuse::doctor {

using runtime::Buffer;
using Kind = runtime::HeapEvent::Kind;

namespace {

struct LiveBuffer {
  Buffer buffer;
  std::uint32_t stream = 0;
};

/// The streams of a record on a device. Records may name more than can exist at one time: the
/// number is taken modulo.
class Streams {
 public:
  Streams(runtime::Timeline& timeline, runtime::Device& device)
      : timeline_(timeline), device_(device) {}
  runtime::StreamId operator[](std::uint32_t number) {
    constexpr std::uint32_t kMax = runtime::kMaxStreams / 2;
    const auto [found, added] = ids_.try_emplace(number % kMax);
    if (added) found->second = timeline_.create(device_);
    return found->second;
  }

 private:
  runtime::Timeline& timeline_;
  runtime::Device& device_;
  std::map<std::uint32_t, runtime::StreamId> ids_;
};

}  // namespace

ReplayResult replay(const MemoryRecord& record, runtime::Device& device,
                    const ReplayOptions& options) {
  runtime::Timeline timeline;
  runtime::Heap heap(device, timeline, options.heap);
  runtime::Executor executor(timeline);
  Streams streams(timeline, device);
  ReplayResult result;
  std::map<Place, LiveBuffer> live;
  std::uint64_t requested = 0;
  std::uint64_t rounded = 0;
  const auto drop = [&](std::map<Place, LiveBuffer>::iterator at) {
    requested -= at->second.buffer.bytes();
    rounded -= runtime::rounded_bytes(at->second.buffer.bytes());
    live.erase(at);
  };
  for (const runtime::HeapEvent& event : record.history) {
    if (event.kind != Kind::kAllocate && event.kind != Kind::kFree) continue;
    const runtime::StreamId stream = streams[event.stream];
    const auto found = live.find({event.arena, event.offset});
    if (event.kind == Kind::kFree) {
      ++result.frees;
      if (found == live.end()) {
        ++result.unknown_frees;
        continue;
      }
      if (options.use && found->second.stream != event.stream)
        executor.launch(stream, {"last use", {}}, {reads(found->second.buffer)});
      drop(found);
      continue;
    }
    ++result.allocations;
    if (found != live.end()) drop(found);  // its free is missing
    try {
      Buffer buffer = heap.allocate(event.requested, stream, event.label);
      if (options.use) executor.launch(stream, {"first use", {}}, {writes(buffer)});
      requested += buffer.bytes();
      rounded += runtime::rounded_bytes(buffer.bytes());
      live[{event.arena, event.offset}] = {std::move(buffer), event.stream};
    } catch (const runtime::OutOfDeviceMemory&) {
      ++result.refused;
    }
    result.peak_requested = std::max(result.peak_requested, requested);
    result.peak_live = std::max(result.peak_live, rounded);
  }
  live.clear();
  const runtime::HeapStatistics statistics = heap.statistics();
  result.peak_mapped = statistics.peak_mapped_bytes;
  result.waits = statistics.added_waits;
  result.host_waits = statistics.host_waits;
  result.grown = statistics.grown;
  result.hits = statistics.magazine_hits;
  result.records = timeline.counts().records;
  return result;
}

}  // namespace segfuse::doctor
