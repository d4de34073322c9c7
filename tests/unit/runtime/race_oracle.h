#pragma once
// Random programs over streams and events, and a brute-force answer to which of their launches
// race: reachability in the graph of explicit orders, byte by byte. Shares nothing with the
// checker.

#include <bitset>
#include <map>
#include <set>
#include <vector>

#include "base/rng.h"
#include "runtime/device.h"

namespace segfuse::runtime {

struct ProgramOp {
  enum class Kind { kLaunch, kRecord, kWait, kSynchronize, kSynchronizeEvent, kQuery, kNewStream };
  struct Access {
    std::size_t first = 0, bytes = 0;
    bool write = false;
  };
  Kind kind = Kind::kLaunch;
  std::size_t stream = 0;
  std::size_t event = 0;
  std::vector<Access> accesses;
  bool complete = false;  ///< what a query answered
};

/// kNewStream destroys the stream in a place and makes another.
inline std::vector<ProgramOp> random_program(Rng& rng, std::size_t length, std::size_t streams,
                                             std::size_t events, std::size_t memory, bool queries) {
  using Kind = ProgramOp::Kind;
  const std::vector<double> weights = {50, 16, 16, 3, 3, queries ? 8.0 : 0.0, 2};
  std::vector<ProgramOp> program;
  for (std::size_t i = 0; i < length; ++i) {
    ProgramOp op;
    op.kind = static_cast<Kind>(rng.categorical(weights));
    op.stream = rng.below(streams);
    op.event = rng.below(events);
    if (op.kind == Kind::kLaunch) {
      const std::size_t count = 1 + rng.below(3);
      for (std::size_t a = 0; a < count; ++a) {
        const std::size_t first = rng.below(memory);
        op.accesses.push_back(
            {first, 1 + rng.below(std::min<std::size_t>(8, memory - first)), rng.below(3) == 0});
      }
    }
    program.push_back(std::move(op));
  }
  return program;
}

/// Runs a program on a device; fills in what queries answered.
inline void run_program(Device& device, std::vector<ProgramOp>& program, std::size_t streams,
                        std::size_t events, std::byte* memory) {
  using Kind = ProgramOp::Kind;
  std::vector<StreamHandle> stream;
  std::vector<EventHandle> event;
  for (std::size_t i = 0; i < streams; ++i) stream.push_back(device.create_stream());
  for (std::size_t i = 0; i < events; ++i) event.push_back(device.create_event());
  for (ProgramOp& op : program) {
    StreamHandle& on = stream[op.stream];
    switch (op.kind) {
      case Kind::kLaunch: {
        std::vector<MemoryAccess> accesses;
        for (const auto& a : op.accesses)
          accesses.push_back({memory + a.first, a.bytes, a.write, "buffer"});
        device.launch(on, {"work", {}}, accesses);
        break;
      }
      case Kind::kRecord: device.record(on, event[op.event]); break;
      case Kind::kWait: device.wait(on, event[op.event]); break;
      case Kind::kSynchronize: device.synchronize(on); break;
      case Kind::kSynchronizeEvent: device.synchronize_event(event[op.event]); break;
      case Kind::kQuery: op.complete = device.query(event[op.event]); break;
      case Kind::kNewStream:
        device.destroy_stream(on);
        on = device.create_stream();
        break;
    }
  }
  for (StreamHandle s : stream) device.destroy_stream(s);
  for (EventHandle e : event) device.destroy_event(e);
}

/// (stream, operation) of the earlier and of the later use, numbered as in Finding::Use.
using UseId = std::pair<int, std::uint64_t>;
using RacePairs = std::set<std::pair<UseId, UseId>>;

class RaceOracle {
 public:
  static constexpr std::size_t kMax = 512;

  RaceOracle(const std::vector<ProgramOp>& program, std::size_t streams, std::size_t memory)
      : memory_(memory) {
    build(program, streams);
    for (std::size_t later = 0; later < uses_.size(); ++later)
      for (std::size_t earlier = 0; earlier < later; ++earlier) add_pair(earlier, later);
  }
  /// All pairs that race and are not explained by a use between them (see RaceChecker).
  const RacePairs& pairs() const { return pairs_; }
  /// Some pair races, explained or not.
  bool any() const { return any_; }

 private:
  using Ancestors = std::bitset<kMax>;
  struct Use {
    std::size_t node = 0;
    UseId id;
    std::vector<int> bytes;  ///< 0: none, 1: read, 2: write
  };
  static constexpr std::size_t kNone = kMax;

  void build(const std::vector<ProgramOp>& program, std::size_t streams) {
    using Kind = ProgramOp::Kind;
    std::vector<std::size_t> tail(streams, kNone);
    std::vector<int> number;
    std::vector<std::uint64_t> operations(streams, 0);
    int made = 0;
    for (std::size_t i = 0; i < streams; ++i) number.push_back(++made);
    std::map<std::size_t, std::size_t> record;
    std::size_t host = kNone;
    for (const ProgramOp& op : program) {
      const std::size_t s = op.stream;
      const auto recorded = record.find(op.event);
      const std::size_t of_event = recorded == record.end() ? kNone : recorded->second;
      switch (op.kind) {
        case Kind::kLaunch:
          tail[s] = add_node({tail[s], host});
          add_use(op, {number[s], ++operations[s]}, tail[s]);
          break;
        case Kind::kRecord: record[op.event] = tail[s] = add_node({tail[s], host}); break;
        case Kind::kWait: tail[s] = add_node({tail[s], host, of_event}); break;
        case Kind::kSynchronize: host = add_node({host, tail[s]}); break;
        case Kind::kSynchronizeEvent: host = add_node({host, of_event}); break;
        case Kind::kQuery:
          if (op.complete) host = add_node({host, of_event});
          break;
        case Kind::kNewStream:
          tail[s] = kNone;
          number[s] = ++made;
          operations[s] = 0;
          break;
      }
    }
  }
  std::size_t add_node(std::initializer_list<std::size_t> before) {
    Ancestors all;
    for (const std::size_t node : before)
      if (node != kNone) {
        all |= ancestors_[node];
        all.set(node);
      }
    ancestors_.push_back(all);
    return ancestors_.size() - 1;
  }
  void add_use(const ProgramOp& op, UseId id, std::size_t node) {
    Use use{node, id, std::vector<int>(memory_, 0)};
    for (const auto& a : op.accesses)
      for (std::size_t x = a.first; x < a.first + a.bytes; ++x)
        use.bytes[x] = std::max(use.bytes[x], a.write ? 2 : 1);
    uses_.push_back(std::move(use));
  }
  bool ordered(const Use& a, const Use& b) const { return ancestors_[b.node].test(a.node); }

  void add_pair(std::size_t earlier, std::size_t later) {
    const Use& a = uses_[earlier];
    const Use& c = uses_[later];
    if (ordered(a, c)) return;
    for (std::size_t x = 0; x < memory_; ++x) {
      if (a.bytes[x] == 0 || c.bytes[x] == 0 || a.bytes[x] + c.bytes[x] < 3) continue;
      any_ = true;
      bool explained = false;
      for (std::size_t between = earlier + 1; between < later; ++between) {
        const Use& b = uses_[between];
        explained |= b.bytes[x] != 0 && ordered(a, b) && (b.bytes[x] == 2 || a.bytes[x] == 1);
      }
      if (!explained) pairs_.insert({a.id, c.id});
    }
  }

  std::size_t memory_;
  std::vector<Ancestors> ancestors_;
  std::vector<Use> uses_;
  RacePairs pairs_;
  bool any_ = false;
};

}  // namespace segfuse::runtime
