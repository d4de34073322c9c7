#include "segfuse/doctor/memory.h"

#include <algorithm>
#include <map>

#include "doctor/memory/levels.h"
#include "doctor/memory/model_device.h"
#include "doctor/memory/replay.h"
#include "doctor/record.h"

namespace segfuse {

namespace {

using doctor::HeldBuffers;
using doctor::Levels;
using doctor::MemoryRecord;
using runtime::BlockState;
using runtime::HeapEvent;
using runtime::HeapSnapshot;

/// Moments of the timeline that are kept.
constexpr std::size_t kPoints = 1200;

std::uint64_t positive(std::int64_t value) {
  return static_cast<std::uint64_t>(std::max<std::int64_t>(value, 0));
}

std::vector<MemoryHolder> holders_of(const HeldBuffers& buffers) {
  std::map<std::string, MemoryHolder> by_label;
  for (const auto& [place, held] : buffers) {
    MemoryHolder& holder = by_label[held.label];
    holder.label = held.label;
    holder.bytes += held.bytes;
    holder.requested += held.requested;
    ++holder.buffers;
  }
  std::vector<MemoryHolder> holders;
  for (auto& [label, holder] : by_label) holders.push_back(std::move(holder));
  std::ranges::stable_sort(holders, std::ranges::greater(), &MemoryHolder::bytes);
  return holders;
}

/// Adds a moment; of many, the one with most live bytes in each stretch of events is kept, and the
/// last one.
class Timeline {
 public:
  explicit Timeline(std::size_t events) : stretch_(events / kPoints + 1) {}
  void add(const HeapEvent& event, const Levels& levels) {
    last_ = {static_cast<double>(event.nanoseconds) * 1e-9, positive(levels.live),
             positive(levels.cached), positive(levels.mapped)};
    if (count_ == 0 || last_.live >= most_.live) most_ = last_;
    if (++count_ == stretch_) flush();
  }
  std::vector<MemoryPoint> take() {
    if (count_ > 0) flush();
    if (!points_.empty() && points_.back().seconds < last_.seconds) points_.push_back(last_);
    return std::move(points_);
  }

 private:
  void flush() {
    points_.push_back(most_);
    count_ = 0;
  }
  std::size_t stretch_;
  std::size_t count_ = 0;
  MemoryPoint most_;
  MemoryPoint last_;
  std::vector<MemoryPoint> points_;
};

void examine_history(const MemoryRecord& record, MemoryReport& report) {
  doctor::Walk walk(record);
  Timeline timeline(record.history.size());
  report.peak_live = positive(walk.levels().live);
  report.peak_mapped = positive(walk.levels().mapped);
  std::size_t peak = 0;  // events before it
  for (std::size_t i = 0; i < record.history.size(); ++i) {
    const HeapEvent& event = record.history[i];
    walk.apply(event);
    timeline.add(event, walk.levels());
    report.allocations += event.kind == HeapEvent::Kind::kAllocate ? 1 : 0;
    report.out_of_memory += event.kind == HeapEvent::Kind::kOutOfMemory ? 1 : 0;
    report.peak_mapped = std::max(report.peak_mapped, positive(walk.levels().mapped));
    if (positive(walk.levels().live) > report.peak_live) {
      report.peak_live = positive(walk.levels().live);
      report.peak_seconds = static_cast<double>(event.nanoseconds) * 1e-9;
      peak = i + 1;
    }
  }
  report.timeline = timeline.take();
  report.live = positive(walk.levels().live);
  report.live_buffers = walk.held().size();
  report.holders = holders_of(walk.held());
  for (const auto& holder : report.holders)
    report.soft_fragmentation += holder.bytes - std::min(holder.bytes, holder.requested);
  doctor::Walk again(record);
  for (std::size_t i = 0; i < peak; ++i) again.apply(record.history[i]);
  report.peak_holders = holders_of(again.held());
}

void examine_snapshot(const HeapSnapshot& snapshot, MemoryReport& report) {
  report.has_snapshot = true;
  report.device = snapshot.device;
  report.hard_limit = snapshot.hard_limit;
  report.peak_mapped =
      std::max<std::uint64_t>(report.peak_mapped, snapshot.statistics.peak_mapped_bytes);
  report.out_of_memory =
      std::max<std::uint64_t>(report.out_of_memory, snapshot.statistics.out_of_memory);
  report.live = report.soft_fragmentation = 0;
  HeldBuffers held;
  std::uint64_t run = 0;
  const HeapSnapshot::Entry* before = nullptr;
  for (const HeapSnapshot::Entry& entry : snapshot.entries) {
    const bool free = entry.state == BlockState::kFree;
    const bool pending = free && !entry.uses.empty();
    const bool goes_on = before != nullptr && before->arena == entry.arena &&
                         before->offset + before->bytes == entry.offset;
    if (!free || !goes_on) run = 0;
    before = &entry;
    report.mapped += entry.bytes;
    if (free) {
      run += entry.bytes;
      report.free += entry.bytes;
      report.largest_run = std::max(report.largest_run, run);
    } else if (entry.state == BlockState::kCached) {
      report.cached += entry.bytes;
    } else if (entry.state == BlockState::kLive) {
      report.live += entry.bytes;
      report.soft_fragmentation += entry.bytes - std::min(entry.bytes, entry.requested);
      held[{entry.arena, entry.offset}] = {entry.bytes, entry.requested, 0, entry.label};
    }
    if (pending) report.stream_fragmentation += entry.bytes;
    report.ranges.push_back({entry.arena, entry.offset, entry.bytes,
                             pending ? "pending" : std::string(doctor::state_name(entry.state)),
                             entry.label});
  }
  report.live_buffers = held.size();
  report.holders = holders_of(held);
  report.hard_fragmentation = report.free - std::min(report.free, report.largest_run);
  if (report.events == 0) {
    report.peak_live = report.live;
    report.peak_holders = report.holders;
  }
}

}  // namespace

MemoryReport examine_memory(const std::filesystem::path& file, bool with_replay) {
  const MemoryRecord record = doctor::read_record(file);
  MemoryReport report;
  report.file = file.string();
  report.source = record.source;
  report.events = record.history.size();
  examine_history(record, report);
  if (record.snapshot) examine_snapshot(*record.snapshot, report);
  if (with_replay) {
    doctor::ModelDevice device;
    const doctor::ReplayResult r = doctor::replay(record, device);
    report.replay = MemoryReplay{r.allocations, r.peak_requested, r.peak_live, r.peak_mapped,
                                 r.waits,       r.host_waits,     r.grown,     r.refused};
  }
  return report;
}

}  // namespace segfuse
