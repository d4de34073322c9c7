#pragma once
// Random programs for comparing evaluators.

#include <string>
#include <vector>

#include "base/rng.h"
#include "ir/builder.h"
#include "ir/fusion.h"

namespace segfuse::testing {

/// What values are made of, so that two evaluators can be compared without guessing at errors.
enum class Numbers {
  kSmooth,    ///< f64, operations without jumps, values kept in about (-4, 4)
  kSmooth32,  ///< the same in f32
  kExact,     ///< f32, i32 and i64 holding small integers, operations that are exact on them
};

struct RandomFusion {
  ir::Fusion fusion;
  Numbers numbers;
};

/// Axes of the inputs are symbols B and T (T at least 4), numbers, and the symbols TLess and
/// TTwice, which requirements make T - 1 and 2 T.
RandomFusion random_fusion(std::uint64_t seed, Numbers numbers);

/// The program with outputs that overwrite inputs: some of those it reads, where shape and type are
/// the same, and new ones that it does not read.
RandomFusion with_overwritten_inputs(const RandomFusion& program, std::uint64_t seed);

/// Inputs for it with these sizes.
std::vector<Tensor> random_inputs(const RandomFusion& program, std::uint64_t seed, std::int64_t b,
                                  std::int64_t t);

}  // namespace segfuse::testing
