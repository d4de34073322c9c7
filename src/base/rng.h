#pragma once
// Counter-based random numbers: Philox4x32-10 (Salmon et al., SC 2011). A number is a function of
// (key, counter) alone, so results do not depend on threads, order or batching.

#include <array>
#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace segfuse {

using PhiloxBlock = std::array<std::uint32_t, 4>;

/// Four random words for counter (c0..c3) under a 64-bit key.
inline PhiloxBlock philox(std::uint64_t key, std::uint64_t counter_low,
                          std::uint64_t counter_high = 0) {
  std::uint32_t k0 = static_cast<std::uint32_t>(key);
  std::uint32_t k1 = static_cast<std::uint32_t>(key >> 32);
  PhiloxBlock c{
      static_cast<std::uint32_t>(counter_low), static_cast<std::uint32_t>(counter_low >> 32),
      static_cast<std::uint32_t>(counter_high), static_cast<std::uint32_t>(counter_high >> 32)};
  for (int round = 0; round < 10; ++round) {
    const std::uint64_t p0 = std::uint64_t{0xD2511F53U} * c[0];
    const std::uint64_t p1 = std::uint64_t{0xCD9E8D57U} * c[2];
    c = {static_cast<std::uint32_t>(p1 >> 32) ^ c[1] ^ k0, static_cast<std::uint32_t>(p1),
         static_cast<std::uint32_t>(p0 >> 32) ^ c[3] ^ k1, static_cast<std::uint32_t>(p0)};
    k0 += 0x9E3779B9U;
    k1 += 0xBB67AE85U;
  }
  return c;
}

/// Uniform in [0, 1) with 24 bits: the multiples of 2^-24.
inline float uniform_from_bits(std::uint32_t bits) {
  return static_cast<float>(bits >> 8) * 0x1p-24F;
}

/// A sequential stream over one key, for code that draws in a fixed order.
class Rng {
 public:
  explicit Rng(std::uint64_t key, std::uint64_t stream = 0) : key_(key), stream_(stream) {}

  std::uint32_t bits();
  double uniform();                          ///< in [0, 1), 53 bits
  std::uint64_t below(std::uint64_t bound);  ///< in [0, bound), unbiased; bound > 0
  double normal();                           ///< mean 0, deviation 1 (Box-Muller)
  /// Index drawn with probability proportional to `weights` (non-negative, not all zero).
  std::size_t categorical(const std::vector<double>& weights);
  template <class T>
  void shuffle(std::vector<T>& values) {
    for (std::size_t i = values.size(); i > 1; --i) std::swap(values[i - 1], values[below(i)]);
  }

 private:
  std::uint64_t key_;
  std::uint64_t stream_;
  std::uint64_t counter_ = 0;
  PhiloxBlock block_{};
  int left_ = 0;
};

}  // namespace segfuse
