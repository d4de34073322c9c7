#pragma once
// Schedules: what a simulated device does next. A schedule that only looks at its arguments and its
// seed makes a run repeatable.

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "runtime/device.h"

namespace segfuse::runtime::sim {

/// What the host is doing while the device may take steps.
enum class Moment {
  kSubmit,   ///< it has just enqueued something
  kObserve,  ///< it is about to see or change what the device may be using: query, unmap, ...
  kWait,     ///< it cannot go on before some work is done
};

/// A step that a stream can take: work begins (it reads its memory) or ends (its writes appear).
struct Step {
  int stream = 0;  ///< streams are numbered from 0 in the order they were made
  bool begin = false;
  bool wanted = false;  ///< the host waits for it (kWait): one step of those offered
  std::string_view name;
  std::span<const MemoryAccess> accesses;
};

class Schedule {
 public:
  virtual ~Schedule() = default;
  /// Index of the step to take; nothing lets the host go on, which it cannot at kWait. `steps` is
  /// not empty; there is at most one per stream, in the order of their numbers.
  virtual std::optional<std::size_t> choose(Moment moment, std::span<const Step> steps) = 0;
  /// The host goes on.
  virtual void host_continues() {}
};

/// Everything is done as soon as it is enqueued.
std::shared_ptr<Schedule> eager();
/// Nothing is done before the host waits, and then only what it waits for.
std::shared_ptr<Schedule> lazy();
/// Eager, but one stream does nothing unless the host waits for it and nothing else can run.
std::shared_ptr<Schedule> starve(int stream);
/// Nothing is done before the host waits; then the youngest streams go first.
std::shared_ptr<Schedule> reverse();
/// Nothing is done before the host waits; then all that can begin begins before anything ends, and
/// what began last ends first.
std::shared_ptr<Schedule> overlap();
/// Random: how far the host is ahead and which streams are preferred depend on the seed.
std::shared_ptr<Schedule> seeded(std::uint64_t seed);

inline constexpr int kHost = -1;
/// Choices as SimDevice::choices() returns them: the stream that takes a step, or kHost. After the
/// last one: lazy. Throws UsageError when the named stream has no step to take.
std::shared_ptr<Schedule> scripted(std::vector<int> choices);

/// The adversaries above and `seeds` seeded schedules, with their names, for loops in tests.
struct NamedSchedule {
  std::string_view name;
  std::uint64_t number = 0;  ///< starved stream or seed
  std::function<std::shared_ptr<Schedule>()> make;
};
std::vector<NamedSchedule> all_schedules(int streams, std::uint64_t seeds);

struct Exploration {
  std::size_t schedules = 0;  ///< different ones that were run
  bool complete = false;      ///< there are no others
};
struct ExploreOptions {
  std::size_t limit = 100'000;  ///< runs
  /// Of schedules that differ only in the order of steps that share no declared memory, one is run
  /// to its end under this function's control and the others are cut short.
  bool reduce = true;
};
/// Runs a program under every schedule: it is called with each of them in turn, makes its device
/// with it, and must make the same calls whenever the device does the same.
Exploration explore(const std::function<void(const std::shared_ptr<Schedule>&)>& program,
                    ExploreOptions options = {});

}  // namespace segfuse::runtime::sim
