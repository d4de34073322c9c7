#pragma once
// The loops of all operations by type. Internal to the kernels.

#include <array>

#include "engine/kernels/pointwise_kernels.h"

namespace segfuse::engine {

inline constexpr std::size_t kTypes = 7;
inline constexpr std::size_t kOps = 0
#define SEGFUSE_UNARY(...) +1
#define SEGFUSE_BINARY(...) +1
#define SEGFUSE_OP(...) +1
#include "segfuse/ops.def"
    ;

struct LoopTable {
  std::array<std::array<Loop, kTypes>, kOps> pointwise{};
  std::array<std::array<Loop, kTypes>, kTypes> cast{};
  std::array<Loop, kTypes> round{};
};

/// Adds the loops of f64, i32 and i64, which are compiled for the baseline only.
void add_other_loops(LoopTable& table);

}  // namespace segfuse::engine
