#include "base/half.h"

#include "segfuse/semicrf.h"

namespace segfuse::semicrf {

Half::Half(double value) : bits(double_to_half(value)) {}

BFloat16::BFloat16(double value) : bits(double_to_bfloat16(value)) {}

}  // namespace segfuse::semicrf
