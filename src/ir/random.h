#pragma once
// The random words of random_uniform: one definition for the interpreter, the executor and every
// code generator.

#include <cstdint>

#include "base/rng.h"

namespace segfuse::ir {

/// Words 4*block .. 4*block+3 of stream `stream` under seed (key, sequence). Element i of a
/// random_uniform takes word i % 4 of block i / 4. Streams below 2^24 under sequences below 2^40
/// share no words.
inline PhiloxBlock random_block(std::int64_t key, std::int64_t sequence, std::int64_t stream,
                                std::uint64_t block) {
  return philox(static_cast<std::uint64_t>(key), block,
                static_cast<std::uint64_t>(sequence) + (static_cast<std::uint64_t>(stream) << 40));
}

/// Element `index` of a random_uniform.
inline float random_element(std::int64_t key, std::int64_t sequence, std::int64_t stream,
                            std::uint64_t index) {
  return uniform_from_bits(random_block(key, sequence, stream, index / 4)[index % 4]);
}

}  // namespace segfuse::ir
