// The race checker around a device that does nothing: see StreamTrace in segfuse/doctor/streams.h.

#include <fmt/core.h>

#include <algorithm>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <unordered_map>

#include "base/mutex.h"
#include "runtime/check/race_checker.h"
#include "segfuse/doctor/streams.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using runtime::EventHandle;
using runtime::Finding;
using runtime::StreamHandle;

/// Numbers of allocations of one line, which tell neighbours in time apart.
constexpr std::uint64_t kAllocations = 1000;
/// Records of events whose places are kept.
constexpr std::size_t kRecords = 4096;

std::string first_line(const std::string& place) { return place.substr(0, place.find('\n')); }

/// Gives out handles, and does nothing: what is done is done by others.
class NoDevice final : public runtime::Device {
 public:
  std::string name() const override { return "traced"; }
  StreamHandle create_stream() override { return StreamHandle(next()); }
  void destroy_stream(StreamHandle) noexcept override {}
  void synchronize(StreamHandle) override {}
  EventHandle create_event() override { return EventHandle(next()); }
  void destroy_event(EventHandle) noexcept override {}
  void record(StreamHandle, EventHandle) override {}
  void wait(StreamHandle, EventHandle) override {}
  bool query(EventHandle) override { return true; }
  void synchronize_event(EventHandle) override {}
  void launch(StreamHandle, runtime::Work, std::span<const runtime::MemoryAccess>) override {}
  void copy(StreamHandle, void*, const void*, std::size_t) override {}
  void fill(StreamHandle, void*, std::uint8_t, std::size_t) override {}
  std::size_t granule() const override { return 1; }
  std::byte* reserve(std::size_t) override { throw InternalError("traced memory is not reserved"); }
  void unreserve(std::byte*, std::size_t) noexcept override {}
  void map(std::byte*, std::size_t) override {}
  void unmap(std::byte*, std::size_t) override {}
  runtime::DeviceMemory memory() override { return {}; }
  std::byte* allocate_pinned(std::size_t) override { return nullptr; }
  void release_pinned(std::byte*, std::size_t) noexcept override {}

 private:
  void* next() { return reinterpret_cast<void*>(++made_); }
  std::uintptr_t made_ = 0;
};

/// Short names for what stands at a place, each for one place only.
class Labels {
 public:
  struct Entry {
    std::string name;
    std::string place;
  };

  const std::string& of(const std::string& name, const std::string& place) {
    std::string& label = labels_[name + "\n" + place];
    if (!label.empty()) return label;
    const std::string base = fmt::format("{} at {}", name, first_line(place));
    label = base;
    for (int i = 2; entries_.contains(label); ++i) label = fmt::format("{} ({})", base, i);
    entries_[label] = {name, place};
    return label;
  }
  Entry entry(const std::string& label) const {
    const auto found = entries_.find(label);
    return found == entries_.end() ? Entry{label, ""} : found->second;
  }

 private:
  std::unordered_map<std::string, std::string> labels_;
  std::unordered_map<std::string, Entry> entries_;
};

}  // namespace

struct StreamTrace::State {
  /// An allocation. What is freed stays, for reports about its memory.
  struct Block {
    std::string label;
    std::uintptr_t end = 0;  ///< of the bytes that were used
    std::set<std::uintptr_t> recorded;
  };
  struct Owner {
    std::string allocated;
    std::string freed;
  };
  struct Record {
    int stream = 0;
    std::uint64_t operation = 0;
    std::string place;
  };
  struct Stream {
    StreamHandle handle;
    std::uint64_t operations = 0;
    int number = 0;
  };

  Stream& stream_at(std::uintptr_t stream) SEGFUSE_REQUIRES(mutex) {
    Stream& known = streams[stream];
    if (!known.handle) {
      known.handle = checker.create_stream();
      known.number = static_cast<int>(streams.size());
    }
    return known;
  }

  Block& block_at(std::uintptr_t block) SEGFUSE_REQUIRES(mutex) {
    const auto [found, is_new] = blocks.try_emplace(block);
    if (is_new) found->second.label = fmt::format("memory at {:#x}", block);
    return found->second;
  }

  runtime::MemoryAccess access_of(const TracedUse& use) SEGFUSE_REQUIRES(mutex) {
    Block& block = block_at(use.block);
    block.end = std::max(block.end, use.first + use.bytes);
    return {reinterpret_cast<std::byte*>(use.first), use.bytes, use.write, block.label};
  }

  void take_findings() SEGFUSE_REQUIRES(mutex) {
    if (seen >= runtime::RaceChecker::kMaxFindings || checker.count() == seen) return;
    const std::vector<Finding> all = checker.findings();
    for (; seen < all.size(); ++seen) {
      const Finding& finding = all[seen];
      if (!pairs.insert(finding.earlier.work + "\n" + finding.later.work + "\n" + last_host).second)
        continue;
      races.push_back(explain(finding));
    }
    seen = std::max<std::uint64_t>(seen, checker.count());
  }

  /// Where the event was recorded that `later` waited for after `earlier` was enqueued, and that
  /// does not cover it.
  std::optional<std::string> early_record(const Finding& finding) const SEGFUSE_REQUIRES(mutex) {
    bool behind = false;
    std::optional<std::string> place;
    for (const runtime::Operation& past : finding.history) {
      using Kind = runtime::Operation::Kind;
      if (past.kind == Kind::kWork && past.stream == finding.earlier.stream &&
          past.operation == finding.earlier.operation)
        behind = true;
      if (!behind || past.kind != Kind::kWait || past.stream != finding.later.stream ||
          past.from_stream != finding.earlier.stream)
        continue;
      for (const Record& record : records)
        if (record.stream == past.from_stream && record.operation == past.from_operation)
          place = record.place;
    }
    return place;
  }

  Owner owner_of(const std::string& label) const SEGFUSE_REQUIRES(mutex) {
    const auto found = owners.find(label);
    return found == owners.end() ? Owner{} : found->second;
  }

  StreamRace explain(const Finding& finding) const SEGFUSE_REQUIRES(mutex) {
    StreamRace race{finding.describe(), finding.missing(), runtime::race_picture(finding)};
    const Labels::Entry earlier = work.entry(finding.earlier.work);
    const Labels::Entry later = work.entry(finding.later.work);
    const std::string used =
        fmt::format("{}, {} on {}", earlier.place, earlier.name, stream_text(finding.earlier));
    const Owner first = owner_of(finding.earlier.buffer);
    if (finding.kind == Finding::Kind::kHost) {
      race.kind = "host";
      race.places = {{"used", used}, {"host", last_host}};
      race.remedy = fmt::format(
          "before {}: synchronize the stream, or an event recorded after {}, because the copy does "
          "not wait for the host",
          first_line(last_host), first_line(earlier.place));
    } else if (finding.earlier.buffer != finding.later.buffer) {
      race.kind = "freed while in use";
      race.places = {{"allocated", first.allocated},
                     {"used", used},
                     {"freed", first.freed},
                     {"reused", fmt::format("{}, {} on {}", later.place, later.name,
                                            stream_text(finding.later))},
                     {"owner", owner_of(finding.later.buffer).allocated}};
      race.remedy = fmt::format(
          "behind {}: TENSOR.record_stream(torch.cuda.current_stream()), where TENSOR is what {} "
          "allocated",
          first_line(earlier.place), first_line(first.allocated));
    } else {
      race.places = {{"first", used},
                     {"then", fmt::format("{}, {} on {}", later.place, later.name,
                                          stream_text(finding.later))},
                     {"allocated", first.allocated}};
      const auto early = early_record(finding);
      if (early) {
        race.kind = "event too early";
        race.places.emplace_back("recorded", *early);
        race.remedy = fmt::format("record the event after {}, not at {}", first_line(earlier.place),
                                  first_line(*early));
      } else {
        race.remedy =
            fmt::format("before {}: torch.cuda.current_stream().wait_stream(S), S being {}",
                        first_line(later.place), stream_text(finding.earlier));
      }
    }
    return race;
  }

  static std::string stream_text(const Finding::Use& use) {
    return use.stream_name.empty() ? fmt::format("stream {}", use.stream)
                                   : fmt::format("stream {} ({})", use.stream, use.stream_name);
  }

  mutable Mutex mutex;
  NoDevice device;
  runtime::RaceChecker checker{device};
  std::unordered_map<std::uintptr_t, Stream> streams SEGFUSE_GUARDED_BY(mutex);
  std::unordered_map<std::uintptr_t, EventHandle> events SEGFUSE_GUARDED_BY(mutex);
  std::unordered_map<std::uintptr_t, Block> blocks SEGFUSE_GUARDED_BY(mutex);
  std::unordered_map<std::string, Owner> owners SEGFUSE_GUARDED_BY(mutex);  ///< by a block's label
  std::unordered_map<std::string, std::uint64_t> allocations SEGFUSE_GUARDED_BY(mutex);
  std::deque<Record> records SEGFUSE_GUARDED_BY(mutex);
  Labels work SEGFUSE_GUARDED_BY(mutex);
  std::uint64_t operations SEGFUSE_GUARDED_BY(mutex) = 0;
  std::uint64_t seen SEGFUSE_GUARDED_BY(mutex) = 0;
  std::string last_host SEGFUSE_GUARDED_BY(mutex);  ///< place of the host's use that is looked at
  std::set<std::string> pairs SEGFUSE_GUARDED_BY(mutex);
  std::vector<StreamRace> races SEGFUSE_GUARDED_BY(mutex);
  std::vector<std::string> notes SEGFUSE_GUARDED_BY(mutex);
};

StreamTrace::StreamTrace() : state_(std::make_unique<State>()) {}
StreamTrace::~StreamTrace() = default;

void StreamTrace::name_stream(std::uintptr_t stream, const std::string& name) {
  const MutexLock lock(state_->mutex);
  state_->checker.name_stream(state_->stream_at(stream).handle, name);
}

void StreamTrace::operation(std::uintptr_t stream, const std::string& name,
                            const std::string& place, std::span<const TracedUse> uses) {
  State& s = *state_;
  const MutexLock lock(s.mutex);
  std::vector<runtime::MemoryAccess> accesses;
  for (const TracedUse& use : uses) accesses.push_back(s.access_of(use));
  State::Stream& enqueued = s.stream_at(stream);
  ++enqueued.operations;
  ++s.operations;
  s.checker.launch(enqueued.handle, {s.work.of(name, place), {}}, accesses);
  s.take_findings();
}

void StreamTrace::host_use(const std::string& place, const TracedUse& use) {
  State& s = *state_;
  const MutexLock lock(s.mutex);
  s.last_host = place;
  s.checker.host_access(s.access_of(use));
  s.take_findings();
  s.last_host.clear();
}

void StreamTrace::record(std::uintptr_t stream, std::uintptr_t event, const std::string& place) {
  State& s = *state_;
  const MutexLock lock(s.mutex);
  const State::Stream& from = s.stream_at(stream);
  EventHandle& handle = s.events[event];
  if (!handle) handle = s.checker.create_event();
  s.checker.record(from.handle, handle);
  s.records.push_back({from.number, from.operations, place});
  if (s.records.size() > kRecords) s.records.pop_front();
}

void StreamTrace::wait(std::uintptr_t stream, std::uintptr_t event, const std::string& place) {
  State& s = *state_;
  const MutexLock lock(s.mutex);
  const State::Stream& waits = s.stream_at(stream);
  const auto found = s.events.find(event);
  if (found != s.events.end()) return s.checker.wait(waits.handle, found->second);
  const std::string note =
      fmt::format("{} waits for an event that was not recorded before; such a wait has no effect",
                  first_line(place));
  if (std::ranges::find(s.notes, note) == s.notes.end()) s.notes.push_back(note);
}

void StreamTrace::destroy_event(std::uintptr_t event) {
  State& s = *state_;
  const MutexLock lock(s.mutex);
  const auto found = s.events.find(event);
  if (found == s.events.end()) return;
  s.checker.destroy_event(found->second);
  s.events.erase(found);
}

void StreamTrace::synchronize_stream(std::uintptr_t stream) {
  const MutexLock lock(state_->mutex);
  state_->checker.synchronize(state_->stream_at(stream).handle);
}

void StreamTrace::synchronize_event(std::uintptr_t event) {
  const MutexLock lock(state_->mutex);
  const auto found = state_->events.find(event);
  if (found != state_->events.end()) state_->checker.synchronize_event(found->second);
}

void StreamTrace::synchronize_device() {
  const MutexLock lock(state_->mutex);
  state_->checker.drain();
}

void StreamTrace::allocate(std::uintptr_t block, const std::string& what,
                           const std::string& place) {
  State& s = *state_;
  const MutexLock lock(s.mutex);
  const std::string line = fmt::format("{} of {}", what, first_line(place));
  const std::string label = fmt::format("{} #{}", line, ++s.allocations[line] % kAllocations);
  s.owners[label] = {place, ""};
  s.blocks[block] = {label, block, {}};
}

void StreamTrace::record_stream(std::uintptr_t block, std::uintptr_t stream) {
  const MutexLock lock(state_->mutex);
  state_->block_at(block).recorded.insert(stream);
}

void StreamTrace::release(std::uintptr_t block, const std::string& place) {
  State& s = *state_;
  const MutexLock lock(s.mutex);
  const auto found = s.blocks.find(block);
  if (found == s.blocks.end()) return;
  State::Block& freed = found->second;
  if (const auto owner = s.owners.find(freed.label); owner != s.owners.end())
    owner->second.freed = place;
  if (!freed.recorded.empty() && freed.end > block) {
    std::vector<StreamHandle> streams;
    for (const std::uintptr_t stream : freed.recorded)
      streams.push_back(s.stream_at(stream).handle);
    s.checker.hand_back(reinterpret_cast<std::byte*>(block), freed.end - block, streams);
  }
  s.blocks.erase(found);
}

std::uint64_t StreamTrace::count() const {
  const MutexLock lock(state_->mutex);
  return state_->races.size();
}

StreamReport StreamTrace::report(std::string command) const {
  const MutexLock lock(state_->mutex);
  return {std::move(command), state_->operations, state_->races, state_->notes};
}

}  // namespace segfuse
