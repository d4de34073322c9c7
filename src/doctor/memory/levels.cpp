#include "doctor/memory/levels.h"

namespace segfuse::doctor {

using runtime::BlockState;
using Kind = runtime::HeapEvent::Kind;

namespace {

void change(Levels& levels, const runtime::HeapEvent& event) {
  const auto bytes = static_cast<std::int64_t>(event.bytes);
  switch (event.kind) {
    case Kind::kAllocate:
      if (event.cached) levels.cached -= bytes;
      break;
    case Kind::kFree:
      if (event.cached) levels.cached += bytes;
      break;
    case Kind::kFlush: levels.cached -= bytes; break;
    case Kind::kMap: levels.mapped += bytes; break;
    case Kind::kUnmap: levels.mapped -= bytes; break;
    case Kind::kOutOfMemory: break;
  }
}

/// Buffers that were live before the history begins: freed in it and not allocated before, or live
/// in the snapshot and not allocated in it.
HeldBuffers held_before(const MemoryRecord& record) {
  HeldBuffers before;
  std::map<Place, bool> live;  // by what history has shown up to now
  for (const runtime::HeapEvent& event : record.history) {
    const Place place(event.arena, event.offset);
    if (event.kind == Kind::kAllocate) live[place] = true;
    if (event.kind != Kind::kFree) continue;
    if (!live.contains(place))
      before[place] = {event.bytes, event.requested, event.stream, event.label};
    live[place] = false;
  }
  if (record.snapshot)
    for (const auto& entry : record.snapshot->entries)
      if (entry.state == BlockState::kLive && !live.contains(Place(entry.arena, entry.offset)))
        before[{entry.arena, entry.offset}] = {entry.bytes, entry.requested, 0, entry.label};
  return before;
}

}  // namespace

Walk::Walk(const MemoryRecord& record) : held_(held_before(record)) {
  Levels net;
  Levels least;
  for (const runtime::HeapEvent& event : record.history) {
    change(net, event);
    least.cached = std::min(least.cached, net.cached);
    least.mapped = std::min(least.mapped, net.mapped);
  }
  levels_.cached = -least.cached;
  levels_.mapped = -least.mapped;
  if (record.snapshot) {
    const auto& last = record.snapshot->statistics;
    levels_.cached = static_cast<std::int64_t>(last.cached_bytes) - net.cached;
    levels_.mapped = static_cast<std::int64_t>(last.mapped_bytes) - net.mapped;
  }
  for (const auto& [place, held] : held_) levels_.live += static_cast<std::int64_t>(held.bytes);
}

void Walk::apply(const runtime::HeapEvent& event) {
  change(levels_, event);
  const Place place(event.arena, event.offset);
  if (event.kind != Kind::kAllocate && event.kind != Kind::kFree) return;
  const auto former = held_.find(place);
  if (former != held_.end()) {
    levels_.live -= static_cast<std::int64_t>(former->second.bytes);
    held_.erase(former);
  }
  if (event.kind == Kind::kFree) return;
  levels_.live += static_cast<std::int64_t>(event.bytes);
  held_[place] = {event.bytes, event.requested, event.stream, event.label};
}

}  // namespace segfuse::doctor
