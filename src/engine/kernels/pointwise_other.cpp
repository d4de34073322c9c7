// The loops of f64, i32 and i64: plain code for the baseline. They serve tests, indices and masks.

#include <hwy/base.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "engine/kernels/loop_table.h"

namespace segfuse::engine {
namespace {

#include "engine/kernels/pointwise_loops-inl.h"

}  // namespace

void add_other_loops(LoopTable& table) {
  add_loops<double>(table);
  add_loops<std::int32_t>(table);
  add_loops<std::int64_t>(table);
}

}  // namespace segfuse::engine
