#include "memory_model.h"

#include <algorithm>
#include <array>
#include <deque>
#include <map>
#include <random>
#include <set>

namespace segfuse::bench {

using runtime::Buffer;
using runtime::EventHandle;
using runtime::Frontier;
using runtime::StreamHandle;
using runtime::StreamTick;

namespace {

constexpr std::size_t kMiB = std::size_t{1} << 20;
constexpr std::size_t kSegment = 20 * kMiB;
constexpr std::size_t kRound = 512;
constexpr int kLive = 64;        // blocks at a time
constexpr int kHostWaits = 200;  // steps between two looks of the host at a result

/// Free lists, one a stream, over segments: best fit, split, joined with neighbours in the same
/// list.
class FreeLists {
 public:
  struct Piece {
    std::byte* address = nullptr;
    std::size_t bytes = 0;
    std::size_t segment = 0;
    int list = -1;  ///< -1: not free
  };
  using Pieces = std::map<std::byte*, Piece>;

  explicit FreeLists(doctor::ModelDevice& device) : device_(device) {}

  std::byte* take(int list, std::size_t bytes) {
    auto& free = lists_[static_cast<std::size_t>(list)];
    const auto found = free.lower_bound({bytes, nullptr});
    if (found == free.end()) return nullptr;
    const auto at = pieces_.find(found->second);
    free.erase(found);
    at->second.list = -1;
    if (const std::size_t rest = at->second.bytes - bytes; rest >= kRound) {
      at->second.bytes = bytes;
      insert({at->first + bytes, rest, at->second.segment, list});
    }
    return at->first;
  }
  void give(std::byte* address, int list) {
    auto at = pieces_.find(address);
    const auto join = [&](Pieces::iterator first, Pieces::iterator second) {
      erase(first->second);
      erase(second->second);
      first->second.bytes += second->second.bytes;
      pieces_.erase(second);
      return first;
    };
    at->second.list = -1;
    if (const auto next = std::next(at);
        next != pieces_.end() && joins(at->second, next->second, list))
      at = join(at, next);
    if (at != pieces_.begin())
      if (const auto before = std::prev(at); joins(at->second, before->second, list))
        at = join(before, at);
    at->second.list = list;
    lists_[static_cast<std::size_t>(list)].insert({at->second.bytes, at->first});
  }
  void grow(int list, std::size_t bytes) {
    const std::size_t size =
        bytes <= kSegment / 2 ? kSegment : (bytes + 2 * kMiB - 1) / (2 * kMiB) * (2 * kMiB);
    std::byte* const address = device_.reserve(size);
    device_.map(address, size);
    insert({address, size, ++segments_, list});
  }
  bool any(int list) const { return !lists_[static_cast<std::size_t>(list)].empty(); }
  /// Whether another list has a piece that is large enough.
  bool fits(int list, std::size_t bytes) const {
    const auto& free = lists_[static_cast<std::size_t>(list)];
    return free.lower_bound({bytes, nullptr}) != free.end();
  }
  /// All that is free in `from` goes to `to`.
  void merge(int from, int to) {
    std::vector<std::byte*> moved;
    for (const auto& [bytes, address] : lists_[static_cast<std::size_t>(from)])
      moved.push_back(address);
    lists_[static_cast<std::size_t>(from)].clear();
    for (std::byte* const address : moved) pieces_.at(address).list = -1;
    for (std::byte* const address : moved)
      if (pieces_.contains(address)) give(address, to);
  }

 private:
  static bool joins(const Piece& a, const Piece& b, int list) {
    return a.segment == b.segment && b.list == list;
  }
  void insert(const Piece& piece) {
    pieces_[piece.address] = piece;
    lists_[static_cast<std::size_t>(piece.list)].insert({piece.bytes, piece.address});
  }
  void erase(const Piece& piece) {
    if (piece.list >= 0)
      lists_[static_cast<std::size_t>(piece.list)].erase({piece.bytes, piece.address});
  }

  doctor::ModelDevice& device_;
  Pieces pieces_;
  std::array<std::set<std::pair<std::size_t, std::byte*>>, kModelStreams> lists_;
  std::size_t segments_ = 0;
};

/// What the other policies have in common: kernels are ordered by the same clocks as ours.
class ListPolicy : public ModelPolicy {
 public:
  explicit ListPolicy(ModelRun& run) : run_(run), lists_(run.device) {}
  std::byte* allocate(int block, std::size_t bytes, int stream) override {
    bytes = (bytes + kRound - 1) / kRound * kRound;
    Held& held = held_[block];
    held = {obtain(stream, bytes), bytes, stream, {}, {}};
    return held.address;
  }
  void use(int block, int stream, bool write) override {
    Held& held = held_.at(block);
    const runtime::StreamId id = run_.streams[static_cast<std::size_t>(stream)];
    if (!write) run_.timeline.order_after(id, Frontier(held.written));
    const runtime::MemoryAccess access{held.address, held.bytes, write, ""};
    const StreamTick tick = run_.timeline.enqueue(
        id, [&](StreamHandle handle) { run_.device.launch(handle, {}, {&access, 1}); });
    if (write) held.written = tick;
    if (stream != held.stream) held.foreign.insert(stream);
  }
  void release(int block) override {
    const auto held = held_.find(block);
    give_up(held->second);
    held_.erase(held);
  }
  std::size_t peak() const override { return run_.device.peak_mapped(); }

 protected:
  struct Held {
    std::byte* address = nullptr;
    std::size_t bytes = 0;
    int stream = 0;
    StreamTick written;
    std::set<int> foreign;  ///< streams that read it
  };
  virtual std::byte* obtain(int stream, std::size_t bytes) = 0;
  virtual void give_up(const Held& held) = 0;

  StreamHandle handle(int stream) const {
    return run_.timeline.handle(run_.streams[static_cast<std::size_t>(stream)]);
  }
  std::byte* take_or_grow(int stream, std::size_t bytes) {
    if (std::byte* const found = lists_.take(stream, bytes)) return found;
    lists_.grow(stream, bytes);
    return lists_.take(stream, bytes);
  }

  ModelRun& run_;
  FreeLists lists_;
  std::map<int, Held> held_;
};

/// Knows the stream of the allocation only.
class Nothing final : public ListPolicy {
 public:
  using ListPolicy::ListPolicy;
  std::byte* obtain(int stream, std::size_t bytes) override { return take_or_grow(stream, bytes); }
  void give_up(const Held& held) override { lists_.give(held.address, held.stream); }
};

/// Events are recorded on the foreign streams when memory is freed, and asked for at every
/// allocation: what PyTorch does for tensors on which record_stream was called.
class RecordAndPoll final : public ListPolicy {
 public:
  using ListPolicy::ListPolicy;
  std::byte* obtain(int stream, std::size_t bytes) override {
    for (auto& queue : pending_) {
      while (!queue.empty() && run_.device.query(queue.front().event)) {
        const Pending done = queue.front();
        queue.pop_front();
        unused_.push_back(done.event);
        if (--outstanding_[done.address] == 0) {
          outstanding_.erase(done.address);
          lists_.give(done.address, done.list);
        }
      }
    }
    return take_or_grow(stream, bytes);
  }
  void give_up(const Held& held) override {
    if (held.foreign.empty()) lists_.give(held.address, held.stream);
    for (const int stream : held.foreign) {
      if (unused_.empty()) unused_.push_back(run_.device.create_event());
      const EventHandle event = unused_.back();
      unused_.pop_back();
      run_.device.record(handle(stream), event);
      pending_[static_cast<std::size_t>(stream)].push_back({event, held.address, held.stream});
      ++outstanding_[held.address];
    }
  }

 private:
  struct Pending {
    EventHandle event;
    std::byte* address = nullptr;
    int list = 0;
  };
  std::array<std::deque<Pending>, kModelStreams> pending_;
  std::map<std::byte*, int> outstanding_;
  std::vector<EventHandle> unused_;
};

/// The user orders all uses before the stream of the free; that stream's event is recorded at every
/// free. What does not fit one's own list is taken from others behind their events; before memory
/// grows, all lists are joined: RMM's pool.
class EventPerFree final : public ListPolicy {
 public:
  explicit EventPerFree(ModelRun& run) : ListPolicy(run) {
    for (auto& event : freed_) event = run.device.create_event();
    join_ = run.device.create_event();
  }
  std::byte* obtain(int stream, std::size_t bytes) override {
    if (std::byte* const found = lists_.take(stream, bytes)) return found;
    for (int other = 0; other < kModelStreams; ++other)
      if (other != stream && lists_.fits(other, bytes)) {
        run_.device.wait(handle(stream), freed_[static_cast<std::size_t>(other)]);
        return lists_.take(other, bytes);
      }
    for (int other = 0; other < kModelStreams; ++other) {
      if (other == stream || !lists_.any(other)) continue;
      run_.device.wait(handle(stream), freed_[static_cast<std::size_t>(other)]);
      lists_.merge(other, stream);
    }
    // What is taken from this list later has to come after what the others did as well.
    run_.device.record(handle(stream), freed_[static_cast<std::size_t>(stream)]);
    return take_or_grow(stream, bytes);
  }
  void give_up(const Held& held) override {
    for (const int reader : held.foreign) {
      run_.device.record(handle(reader), join_);
      run_.device.wait(handle(held.stream), join_);
    }
    lists_.give(held.address, held.stream);
    run_.device.record(handle(held.stream), freed_[static_cast<std::size_t>(held.stream)]);
  }

 private:
  std::array<EventHandle, kModelStreams> freed_{};
  EventHandle join_;
};

class Ours final : public ModelPolicy {
 public:
  Ours(ModelRun& run, const PolicyOptions& options)
      : run_(run),
        keep_(!options.free),
        heap_(run.device, run.timeline, {.soft_limit = options.soft_limit}),
        executor_(run.timeline) {}
  std::byte* allocate(int block, std::size_t bytes, int stream) override {
    Buffer& buffer = buffers_[block];
    buffer = heap_.allocate(bytes, run_.streams[static_cast<std::size_t>(stream)]);
    return buffer.address();
  }
  void use(int block, int stream, bool write) override {
    const Buffer& buffer = buffers_.at(block);
    executor_.launch(run_.streams[static_cast<std::size_t>(stream)], {},
                     {write ? runtime::writes(buffer) : runtime::reads(buffer)});
  }
  void release(int block) override {
    if (!keep_) buffers_.erase(block);
  }
  std::size_t peak() const override { return heap_.statistics().peak_mapped_bytes; }

 private:
  ModelRun& run_;
  bool keep_;
  runtime::Heap heap_;
  runtime::Executor executor_;
  std::map<int, Buffer> buffers_;
};

}  // namespace

ModelProgram model_program(std::uint64_t seed, int steps, double foreign) {
  std::mt19937_64 random(seed);
  const auto below = [&](std::size_t n) { return static_cast<int>(random() % n); };
  ModelProgram program;
  std::vector<int> live;
  std::vector<int> homes;
  for (int i = 0; i < steps; ++i) {
    ModelProgram::Step step;
    step.bytes = 1 + random() % (8 * kMiB);
    step.stream = below(kModelStreams);
    homes.push_back(step.stream);
    live.push_back(i);
    if (static_cast<double>(random() >> 11) * 0x1p-53 < foreign) {
      step.read_block = live[static_cast<std::size_t>(below(live.size()))];
      step.read_stream =
          (homes[static_cast<std::size_t>(step.read_block)] + 1 + below(kModelStreams - 1)) %
          kModelStreams;
    }
    if (live.size() > kLive) {
      const int which = below(live.size());
      step.freed_block = live[static_cast<std::size_t>(which)];
      live.erase(live.begin() + which);
    }
    step.host_waits = i % kHostWaits == kHostWaits - 1;
    program.steps.push_back(step);
  }
  return program;
}

ModelRun::ModelRun() {
  for (int i = 0; i < kModelStreams; ++i) streams.push_back(timeline.create(device));
}

std::unique_ptr<ModelPolicy> make_policy(ModelRun& run, const PolicyOptions& options) {
  switch (options.kind) {
    case PolicyKind::kRecordAndPoll: return std::make_unique<RecordAndPoll>(run);
    case PolicyKind::kEventPerFree: return std::make_unique<EventPerFree>(run);
    case PolicyKind::kNothing: return std::make_unique<Nothing>(run);
    case PolicyKind::kFrontier: break;
  }
  return std::make_unique<Ours>(run, options);
}

ModelResult run_model(const ModelProgram& program, const PolicyOptions& options, double work,
                      std::uint64_t schedule) {
  std::mt19937_64 random(schedule);
  const auto draw = [&] {
    return work * (0.25 + 1.5 * static_cast<double>(random() >> 11) * 0x1p-53);
  };
  ModelRun run;
  const auto policy = make_policy(run, options);
  ModelResult result;
  std::vector<std::uint64_t> addresses;
  double live = 0;
  for (std::size_t i = 0; i < program.steps.size(); ++i) {
    const ModelProgram::Step& step = program.steps[i];
    const std::byte* const address = policy->allocate(static_cast<int>(i), step.bytes, step.stream);
    addresses.push_back(reinterpret_cast<std::uintptr_t>(address));
    live += static_cast<double>(step.bytes);
    result.live_mib = std::max(result.live_mib, live / static_cast<double>(kMiB));
    run.device.set_duration(draw());
    policy->use(static_cast<int>(i), step.stream, true);
    run.device.set_duration(draw());
    if (step.read_block >= 0) policy->use(step.read_block, step.read_stream, false);
    if (step.freed_block >= 0) {
      policy->release(step.freed_block);
      live -= static_cast<double>(program.steps[static_cast<std::size_t>(step.freed_block)].bytes);
    }
    run.device.pass(1);
    if (step.host_waits)
      run.timeline.synchronize(run.streams[static_cast<std::size_t>(step.stream)]);
  }
  result.peak_mib = static_cast<double>(policy->peak()) / static_cast<double>(kMiB);
  result.makespan = run.device.finish();
  const doctor::ModelCounts& counts = run.device.counts();
  result.records = counts.records;
  result.waits = counts.waits;
  result.queries = counts.queries;
  result.conflicts = counts.conflicts;
  for (const std::uint64_t address : addresses)
    result.addresses = (result.addresses ^ address) * 0x100000001b3ULL;
  return result;
}

}  // namespace segfuse::bench
