#pragma once
// Random programs with what the passes look for, and the same program in another order.

#include "support/random/random_fusion.h"

namespace segfuse::testing {

/// A random program with chains of neutral operations, repetitions, casts there and back, empty
/// parts and dead code around its values, all of them outputs too.
RandomFusion seasoned_fusion(std::uint64_t seed, Numbers numbers);

/// random_inputs(), with NaN, infinities and zeros of both signs among the floats.
std::vector<Tensor> special_inputs(const RandomFusion& program, std::uint64_t seed, std::int64_t b,
                                   std::int64_t t);

/// The same program with its live expressions inserted in a random order that their operands
/// allow. Ids are dense again.
ir::Fusion shuffled(const ir::Fusion& fusion, std::uint64_t seed);

}  // namespace segfuse::testing
