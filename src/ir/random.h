#pragma once
// The random words of random_uniform: one definition for the interpreter, the executor and every
// code generator.

#include <cstdint>

#include "base/rng.h"

namespace segfuse::ir {

/// The high half of the counter. Streams below 2^24 under sequences below 2^40 share no words.
inline std::uint64_t random_counter_high(std::int64_t sequence, std::int64_t stream) {
  return static_cast<std::uint64_t>(sequence) + (static_cast<std::uint64_t>(stream) << 40);
}

/// Element `index` of a random_uniform under seed (key, sequence): word index % 4 of the Philox
/// block with counter index / 4.
inline float random_element(std::int64_t key, std::int64_t sequence, std::int64_t stream,
                            std::uint64_t index) {
  const PhiloxBlock block =
      philox(static_cast<std::uint64_t>(key), index / 4, random_counter_high(sequence, stream));
  return uniform_from_bits(block[index % 4]);
}

}  // namespace segfuse::ir
