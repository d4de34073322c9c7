// Every schedule of a program, by depth-first search over choices; the program is run again for
// each. Reduction by sleep sets: after a step was tried, it stays asleep along the other branches
// until one takes a step that it does not commute with; a branch on which all steps sleep was seen.

#include <fmt/core.h>

#include <algorithm>

#include "segfuse/error.h"
#include "support/sim/schedule.h"

namespace segfuse::runtime::sim {
namespace {

/// The next step of a stream, with what it does to memory.
struct NextStep {
  int stream = kHost;
  bool begin = false;
  std::vector<MemoryAccess> accesses;
};

bool overlap(const MemoryAccess& a, const MemoryAccess& b) {
  return a.address < b.address + b.bytes && b.address < a.address + a.bytes;
}

/// Work reads when it begins and writes when it ends.
bool commute(const NextStep& a, const NextStep& b) {
  if (a.begin && b.begin) return true;
  for (const MemoryAccess& x : a.accesses)
    for (const MemoryAccess& y : b.accesses)
      if (x.write != a.begin && y.write != b.begin && overlap(x, y)) return false;
  return true;
}

struct Node {
  std::vector<NextStep> options;  ///< that are awake, in the order they are tried
  std::vector<NextStep> asleep;
  std::size_t chosen = 0;
};

class Explorer final : public Schedule {
 public:
  explicit Explorer(bool reduce) : reduce_(reduce) {}

  std::optional<std::size_t> choose(Moment moment, std::span<const Step> steps) override {
    // What was enqueued later than a step can be enqueued before it: no choice here.
    if (moment == Moment::kSubmit) return {};
    if (seen_) return 0;
    if (depth_ == path_.size()) {
      add_node(moment, steps);
      if (seen_) return 0;
    }
    const Node& node = path_[depth_++];
    const int stream = node.options[node.chosen].stream;
    if (stream == kHost) return {};
    const auto found = std::ranges::find(steps, stream, &Step::stream);
    if (found == steps.end())
      throw UsageError(fmt::format(
          "explore: the program did something else after the same {} choices", depth_ - 1));
    return static_cast<std::size_t>(found - steps.begin());
  }
  void host_continues() override { host_depth_ = depth_; }

  /// True if the run that has ended is like an earlier one.
  bool seen() const noexcept { return seen_; }
  /// False when there is none.
  bool next_run() {
    depth_ = host_depth_ = 0;
    seen_ = false;
    while (!path_.empty() && path_.back().chosen + 1 == path_.back().options.size())
      path_.pop_back();
    if (path_.empty()) return false;
    ++path_.back().chosen;
    return true;
  }

 private:
  void add_node(Moment moment, std::span<const Step> steps) {
    Node node;
    if (reduce_ && depth_ > host_depth_) node.asleep = asleep_after(path_.back());
    for (const Step& step : steps) {
      const bool sleeps =
          std::ranges::find(node.asleep, step.stream, &NextStep::stream) != node.asleep.end();
      if (!sleeps)
        node.options.push_back(
            {step.stream, step.begin, {step.accesses.begin(), step.accesses.end()}});
    }
    if (moment == Moment::kObserve) node.options.emplace_back();
    seen_ = node.options.empty();
    if (!seen_) path_.push_back(std::move(node));
  }

  static std::vector<NextStep> asleep_after(const Node& node) {
    const NextStep& taken = node.options[node.chosen];
    std::vector<NextStep> asleep;
    for (const NextStep& step : node.asleep)
      if (commute(step, taken)) asleep.push_back(step);
    for (std::size_t i = 0; i < node.chosen; ++i)
      if (commute(node.options[i], taken)) asleep.push_back(node.options[i]);
    return asleep;
  }

  bool reduce_;
  std::vector<Node> path_;
  std::size_t depth_ = 0;
  std::size_t host_depth_ = 0;  ///< where the host last went on: nothing sleeps past it
  bool seen_ = false;
};

}  // namespace

Exploration explore(const std::function<void(const std::shared_ptr<Schedule>&)>& program,
                    ExploreOptions options) {
  const auto explorer = std::make_shared<Explorer>(options.reduce);
  Exploration result;
  for (std::size_t run = 0; run < options.limit; ++run) {
    program(explorer);
    if (!explorer->seen()) ++result.schedules;
    result.complete = !explorer->next_run();
    if (result.complete) break;
  }
  return result;
}

}  // namespace segfuse::runtime::sim
