#include "learn/train/loop/stragglers.h"

#include <fmt/format.h>

namespace segfuse::learn {
namespace {

constexpr double kFar = 1.1;      // times what the next slowest one takes
constexpr double kMax = 0.8;      // of the steps
constexpr double kMin = 0.000'5;  // seconds a shard that are worth a word

}  // namespace

std::optional<std::string> Stragglers::add(const std::vector<Work>& ranks) {
  sums_.resize(ranks.size());
  double slowest = 0;
  double next = 0;
  std::size_t who = 0;
  std::size_t working = 0;
  for (std::size_t rank = 0; rank < ranks.size(); ++rank) {
    if (ranks[rank].shards == 0) continue;
    ++working;
    const double seconds = ranks[rank].seconds / static_cast<double>(ranks[rank].shards);
    if (seconds > slowest) {
      next = slowest;
      slowest = seconds;
      who = rank;
    } else if (seconds > next) {
      next = seconds;
    }
  }
  if (working > 1 && slowest > kFar * next && slowest - next > kMin) {
    ++sums_[who].times;
    sums_[who].own += slowest;
    sums_[who].next += next;
  }
  return ++steps_ % kSteps == 0 ? judge() : std::nullopt;
}

std::optional<std::string> Stragglers::judge() {
  std::optional<std::string> sentence;
  for (std::size_t rank = 0; rank < sums_.size(); ++rank) {
    const Sum& sum = sums_[rank];
    if (sum.times <= kMax * kSteps || said_ == rank) continue;
    said_ = rank;
    sentence = fmt::format(
        "rank {} is slow: in {} of {} steps it took the longest for a shard, {:.1f} ms against "
        "{:.1f} "
        "ms of the next slowest rank",
        rank, sum.times, kSteps, 1000 * sum.own / sum.times, 1000 * sum.next / sum.times);
  }
  sums_.assign(sums_.size(), {});
  return sentence;
}

}  // namespace segfuse::learn
