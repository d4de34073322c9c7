#include "base/half.h"

#include "segfuse/semicrf.h"

namespace segfuse::semicrf {

// By way of a float, as on GPUs (cuda/kernels/common/half.cuh).
Half::Half(double value) : bits(float_to_half(static_cast<float>(value))) {}

BFloat16::BFloat16(double value) : bits(float_to_bfloat16(static_cast<float>(value))) {}

}  // namespace segfuse::semicrf
