#include "base/rng.h"

#include <cmath>
#include <numbers>
#include <numeric>

#include "base/check.h"

namespace segfuse {

std::uint32_t Rng::bits() {
  if (left_ == 0) {
    block_ = philox(key_, counter_++, stream_);
    left_ = 4;
  }
  return block_[static_cast<std::size_t>(--left_)];
}

double Rng::uniform() {
  const std::uint64_t high = bits();
  const std::uint64_t low = bits();
  return static_cast<double>(((high << 32) | low) >> 11) * 0x1p-53;
}

std::uint64_t Rng::below(std::uint64_t bound) {
  SEGFUSE_CHECK(bound > 0, "found a bound of zero for a random index, expected 1 or more");
  const std::uint64_t reject_under = (0 - bound) % bound;
  while (true) {
    const std::uint64_t high = bits();
    const std::uint64_t draw = (high << 32) | bits();
    if (draw >= reject_under) return draw % bound;
  }
}

double Rng::normal() {
  const double radius = std::sqrt(-2 * std::log1p(-uniform()));
  return radius * std::cos(2 * std::numbers::pi * uniform());
}

std::size_t Rng::categorical(const std::vector<double>& weights) {
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  SEGFUSE_CHECK(total > 0, "the weights sum to {}", total);
  double rest = uniform() * total;
  std::size_t last = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] <= 0) continue;
    last = i;
    rest -= weights[i];
    if (rest < 0) return i;
  }
  return last;
}

}  // namespace segfuse
