#include "comm/add.h"

#include <cmath>

namespace segfuse::comm {

void add_values(std::span<const float> left, std::span<const float> right, std::span<float> sum) {
  const std::size_t words = sum.size();
  const float* a = left.data();
  const float* b = right.data();
  float* to = sum.data();
  for (std::size_t i = 0; i < words; ++i) {
    const float both = a[i] + b[i];
    to[i] = std::isnan(a[i]) ? a[i] : both;
  }
}

}  // namespace segfuse::comm
