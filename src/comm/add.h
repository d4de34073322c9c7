#pragma once
// The addition that sums over shards are made of.

#include <cstddef>
#include <span>

namespace segfuse::comm {

/// sum[i] = left[i] + right[i] in f32; `sum` may be either of them. Compilers may swap the operands
/// of +, and of two NaNs processors keep the first: here it is always the left one, so that the
/// bits are the same wherever a sum is made.
void add_values(std::span<const float> left, std::span<const float> right, std::span<float> sum);

}  // namespace segfuse::comm
