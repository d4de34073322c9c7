#pragma once
// The two 16-bit float types, which are stored as they are and computed in f32.

#include "segfuse/tensor.h"

namespace segfuse {

constexpr bool is_half(DType dtype) { return dtype == DType::kF16 || dtype == DType::kBF16; }
/// The type in which values are computed.
constexpr DType compute_type(DType dtype) { return is_half(dtype) ? DType::kF32 : dtype; }

}  // namespace segfuse
