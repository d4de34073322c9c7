#pragma once
// Inputs for a program that is examined: those that its file has, and others made up from a seed.

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "engine/numerics/part.h"
#include "segfuse/program.h"

namespace segfuse::engine::numerics {

/// Floats are normal, or positive where an operation that needs it reads them; indices are in
/// range, labels make segmentations that fit, bools are 0 and 1. Shapes follow from `sizes`; a
/// symbol that is not named is 16. DataError when given values do not fit the input, UsageError for
/// a size that no symbol has, or sizes that do not fit each other.
std::vector<Tensor> make_inputs(const ir::Fusion& fusion, const SizeExamples& sizes,
                                std::uint64_t seed, std::span<const GivenValues> given,
                                std::vector<std::string>& notes);

}  // namespace segfuse::engine::numerics
