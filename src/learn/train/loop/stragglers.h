#pragma once
// Which rank the others wait for, step after step.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace segfuse::learn {

class Stragglers {
 public:
  /// What a rank says of a step: how long its shards took, and how many they were. Ranks with more
  /// shards than others take longer, which is nobody's fault.
  struct Work {
    double seconds = 0;
    std::int64_t shards = 0;
  };
  static constexpr int kSteps = 50;

  /// One step of all ranks. After each kSteps a sentence about a rank that took by far the longest
  /// for a shard in most of them; once for a rank, until it is another one.
  std::optional<std::string> add(const std::vector<Work>& ranks);

 private:
  struct Sum {
    int times = 0;
    double own = 0;   ///< seconds a shard
    double next = 0;  ///< of the next slowest rank
  };
  std::optional<std::string> judge();

  int steps_ = 0;
  std::vector<Sum> sums_;  ///< of each rank, over the steps in which it was the slowest
  std::optional<std::size_t> said_;
};

}  // namespace segfuse::learn
