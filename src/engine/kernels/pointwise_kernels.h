#pragma once
// Inner loops of elementwise operations over contiguous or scalar operands, compiled for several
// SIMD targets and picked once for the machine.

#include <cstdint>

#include "base/half_types.h"
#include "ir/op.h"
#include "segfuse/tensor.h"

namespace segfuse::engine {

/// Operands of one loop; stride 1 walks, stride 0 repeats the first element. Unused ones are null.
struct LoopOperands {
  const void* data[3] = {};
  std::int64_t stride[3] = {};
};

/// out[i] = op(operands at i) for i in [0, n). out may be an operand with stride 1, not overlap it
/// otherwise.
using Loop = void (*)(void* out, const LoopOperands& operands, std::int64_t n);

/// The loop of an elementwise operation on operands of a compute type (for `where` that of the
/// values); not cast. InternalError if the operation does not take that type.
Loop pointwise_loop(ir::Op op, DType operand_type);
/// Conversion between compute types: floats to integers truncate and saturate, integers wrap, bool
/// is "not 0".
Loop cast_loop(DType from, DType to);
/// f32 to f32, rounded to what f16 or bf16 can hold.
Loop round_loop(DType half);

/// Elements [begin, begin + n) of a random_uniform: ir::random_element, many at a time.
void random_uniform(const std::int64_t* seed, std::int64_t stream, std::int64_t begin,
                    std::int64_t n, float* to);

}  // namespace segfuse::engine
