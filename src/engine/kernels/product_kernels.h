#pragma once
// Matrix products of blocks. An element of a result is a function of its row, its column and the
// number of inner elements alone: it has the same bits wherever it lies in a block, however the
// operands are stored, and on all processors with fused multiply-add (AVX2, AVX-512, NEON).

#include <cstdint>

namespace segfuse::engine {

/// c = a b, or c += a b. Of each kBlockInner inner elements the products are summed in their order,
/// by fused multiply-add from 0 on, and the sum is added to c.
template <class T>
struct ProductBlock {
  std::int64_t m = 0, n = 0, k = 0;
  const T* a = nullptr;  ///< m by k; elements between rows, and between columns
  std::int64_t a_row = 0, a_column = 1;
  const T* b = nullptr;  ///< k by n
  std::int64_t b_row = 0, b_column = 1;
  T* c = nullptr;  ///< m by n, by rows
  std::int64_t c_row = 0;
  bool add = false;
};

/// Inner elements that are summed before they are added to the others.
inline constexpr std::int64_t kBlockInner = 256;

template <class T>
void multiply_block(const ProductBlock<T>& block);
template <>
void multiply_block(const ProductBlock<float>& block);
template <>
void multiply_block(const ProductBlock<double>& block);

}  // namespace segfuse::engine
