#pragma once
// How long a step of a plan took.

#include <cstdint>
#include <string>

namespace segfuse::engine {

/// Time spent in one step, over all runs with one set of shapes.
struct StepTime {
  std::string what;  ///< the operation, "N pointwise: a b c", "row_norm of 9", "copy"
  double seconds = 0;
  std::int64_t runs = 0;
};

}  // namespace segfuse::engine
