#pragma once
// Random programs over a heap and its streams, run on any device. Every kernel checks that what it
// reads is what a sequential run would have written.

#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/executor.h"
#include "runtime/memory/heap.h"
#include "support/sim/sim_device.h"

namespace segfuse::runtime {

/// One call. Slots hold buffers; streams are numbers of a program's streams.
struct Step {
  enum class Kind {
    kAllocate,  ///< slot, bytes, stream
    kLaunch,    ///< stream, reads other and third (if not negative), writes slot
    kCopy,      ///< stream, other to slot
    kFill,      ///< stream, slot
    kDrop,      ///< slot
    kShare,     ///< slot becomes another handle of other
    kUnseen,    ///< work that the executor does not see writes slot on stream, under a loan
    kRecord,    ///< unseen work reads slot on stream, which is then recorded
    kSync,      ///< stream
    kRecreate,  ///< stream is retired and made again
    kTrim,
    kLimit,  ///< bytes
  };
  Kind kind = Kind::kTrim;
  int stream = 0;
  int slot = 0;
  int other = -1;
  int third = -1;
  std::size_t bytes = 0;
};

struct ProgramShape {
  int streams = 3;
  int slots = 6;
  int steps = 60;
  std::size_t most_bytes = 200'000;
  bool unseen = true;
  bool recreate = true;
  bool limits = false;
  bool trims = true;
  bool syncs = true;
  /// Every allocation is followed by a kernel that writes the memory on its stream.
  bool use_at_once = false;
};
using Program = std::vector<Step>;
Program random_program(std::uint64_t seed, const ProgramShape& shape);
std::string to_string(const Program& program);

/// What a run did that must not depend on the device: addresses, waits, growth.
struct Trace {
  std::vector<std::uint64_t> values;
  bool operator==(const Trace&) const = default;
};

struct RunOptions {
  HeapOptions heap{.hard_limit = std::size_t{4} << 20};
  int streams = 3;
  int slots = 6;
  bool verify = true;  ///< the heap after every step
  /// Called after every step.
  std::function<void(std::size_t step, Heap& heap)> after;
  /// Called with what a step throws; false: it is thrown on.
  std::function<bool(std::size_t step, const std::exception& error)> caught;
};

/// Runs a program and gives all back. `base` is where addresses count from.
class Runner {
 public:
  Runner(Device& device, const std::byte* base, RunOptions options);
  ~Runner();

  void run(const Program& program);
  void step(const Step& step);
  /// Drops all buffers, waits and trims.
  void finish();

  Heap& heap() { return *heap_; }
  Timeline& timeline() { return *timeline_; }
  const Trace& trace() const { return trace_; }
  /// Words that kernels found to be other than they should; and whether any kernel ran.
  std::uint64_t wrong_words() const { return wrong_->load(); }
  std::uint64_t checked_words() const { return checked_->load(); }
  std::size_t live_handles() const;
  /// By the runner's own books: rounded and requested bytes of distinct live buffers.
  std::pair<std::size_t, std::size_t> live_bytes() const;

 private:
  struct Slot {
    Buffer buffer;
    std::shared_ptr<std::uint64_t> expected;  ///< in every word; null before the first write
  };

  Work kernel(const std::vector<const Slot*>& read, const Slot& written, std::uint64_t value);
  void launch(const Step& step);
  void unseen(const Step& step);
  std::uint64_t fresh() { return ++values_ * 0x9E3779B97F4A7C15ULL; }
  StreamId& stream(int number) { return streams_[static_cast<std::size_t>(number)]; }

  Device& device_;
  const std::byte* base_;
  RunOptions options_;
  std::unique_ptr<Timeline> timeline_;
  std::unique_ptr<Executor> executor_;
  std::unique_ptr<Heap> heap_;
  std::vector<StreamId> streams_;
  std::vector<Slot> slots_;
  Trace trace_;
  std::uint64_t values_ = 0;
  std::shared_ptr<std::atomic<std::uint64_t>> wrong_;
  std::shared_ptr<std::atomic<std::uint64_t>> checked_;
};

}  // namespace segfuse::runtime
