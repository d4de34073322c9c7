#include "support/sim/schedule.h"

#include <fmt/core.h>

#include <algorithm>

#include "base/rng.h"
#include "segfuse/error.h"

namespace segfuse::runtime::sim {
namespace {

using Choice = std::optional<std::size_t>;

std::size_t wanted(std::span<const Step> steps) {
  for (std::size_t i = 0; i < steps.size(); ++i)
    if (steps[i].wanted) return i;
  return 0;
}

class Eager final : public Schedule {
 public:
  Choice choose(Moment, std::span<const Step>) override { return 0; }
};

class Lazy final : public Schedule {
 public:
  Choice choose(Moment moment, std::span<const Step> steps) override {
    if (moment != Moment::kWait) return {};
    return wanted(steps);
  }
};

class Starve final : public Schedule {
 public:
  explicit Starve(int stream) : stream_(stream) {}
  Choice choose(Moment moment, std::span<const Step> steps) override {
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (steps[i].stream != stream_) return i;
    if (moment != Moment::kWait) return {};
    return 0;
  }

 private:
  int stream_;
};

class Reverse final : public Schedule {
 public:
  Choice choose(Moment moment, std::span<const Step> steps) override {
    if (moment != Moment::kWait) return {};
    return steps.size() - 1;
  }
};

class Overlap final : public Schedule {
 public:
  Choice choose(Moment moment, std::span<const Step> steps) override {
    if (moment != Moment::kWait) return {};
    for (std::size_t i = 0; i < steps.size(); ++i)
      if (steps[i].begin) {
        begun_.push_back(steps[i].stream);
        return i;
      }
    for (; !begun_.empty(); begun_.pop_back()) {
      const auto last = std::ranges::find(steps, begun_.back(), &Step::stream);
      if (last == steps.end()) continue;
      begun_.pop_back();
      return static_cast<std::size_t>(last - steps.begin());
    }
    return steps.size() - 1;
  }

 private:
  std::vector<int> begun_;
};

class Seeded final : public Schedule {
 public:
  explicit Seeded(std::uint64_t seed) : rng_(seed, kStream) {
    constexpr double kHostSpeeds[] = {0.02, 0.3, 0.7, 0.98};
    constexpr double kSwaps[] = {0.01, 0.1, 1.0};
    host_speed_ = kHostSpeeds[rng_.below(std::size(kHostSpeeds))];
    swap_ = kSwaps[rng_.below(std::size(kSwaps))];
  }

  /// The stream of the highest priority; now and then priorities change.
  Choice choose(Moment moment, std::span<const Step> steps) override {
    if (moment != Moment::kWait && rng_.uniform() < host_speed_) return {};
    while (priorities_.size() <= static_cast<std::size_t>(steps.back().stream))
      priorities_.push_back(rng_.bits());
    if (rng_.uniform() < swap_) priority(steps[rng_.below(steps.size())]) = rng_.bits();
    const auto best =
        std::ranges::max_element(steps, {}, [&](const Step& step) { return priority(step); });
    return static_cast<std::size_t>(best - steps.begin());
  }

 private:
  static constexpr std::uint64_t kStream = 0x5C4ED;
  std::uint32_t& priority(const Step& step) {
    return priorities_[static_cast<std::size_t>(step.stream)];
  }
  Rng rng_;
  double host_speed_ = 0;
  double swap_ = 0;
  std::vector<std::uint32_t> priorities_;
};

class Scripted final : public Schedule {
 public:
  explicit Scripted(std::vector<int> choices) : choices_(std::move(choices)) {}
  Choice choose(Moment moment, std::span<const Step> steps) override {
    if (next_ == choices_.size()) return rest_.choose(moment, steps);
    const int stream = choices_[next_++];
    if (stream == kHost && moment != Moment::kWait) return {};
    const auto found = std::ranges::find(steps, stream, &Step::stream);
    if (found == steps.end())
      throw UsageError(fmt::format(
          "schedule: choice {} is stream {}, which has no step to take there", next_, stream));
    return static_cast<std::size_t>(found - steps.begin());
  }

 private:
  std::vector<int> choices_;
  std::size_t next_ = 0;
  Lazy rest_;
};

}  // namespace

std::shared_ptr<Schedule> eager() { return std::make_shared<Eager>(); }
std::shared_ptr<Schedule> lazy() { return std::make_shared<Lazy>(); }
std::shared_ptr<Schedule> starve(int stream) { return std::make_shared<Starve>(stream); }
std::shared_ptr<Schedule> reverse() { return std::make_shared<Reverse>(); }
std::shared_ptr<Schedule> overlap() { return std::make_shared<Overlap>(); }
std::shared_ptr<Schedule> seeded(std::uint64_t seed) { return std::make_shared<Seeded>(seed); }
std::shared_ptr<Schedule> scripted(std::vector<int> choices) {
  return std::make_shared<Scripted>(std::move(choices));
}

std::vector<NamedSchedule> all_schedules(int streams, std::uint64_t seeds) {
  std::vector<NamedSchedule> all = {
      {"eager", 0, eager}, {"lazy", 0, lazy}, {"reverse", 0, reverse}, {"overlap", 0, overlap}};
  for (int stream = 0; stream < streams; ++stream)
    all.push_back({"starve", static_cast<std::uint64_t>(stream), [=] { return starve(stream); }});
  for (std::uint64_t seed = 0; seed < seeds; ++seed)
    all.push_back({"seeded", seed, [=] { return seeded(seed); }});
  return all;
}

}  // namespace segfuse::runtime::sim
