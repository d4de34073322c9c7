#pragma once
// Matrix products over strided arrays on CPU threads.

#include "base/thread_pool.h"
#include "engine/exec/array.h"

namespace segfuse::engine {

/// One operand of a product as BLAS takes it: batch x rows x columns, stored by rows or by columns.
struct Matrix {
  std::int64_t batch = 1;
  std::int64_t batch_stride = 0;
  std::int64_t rows = 0;
  std::int64_t columns = 0;
  bool by_columns = false;   ///< neighbours in a column are neighbours in memory
  std::int64_t leading = 1;  ///< elements between rows (between columns when by_columns)
};

/// The view of (..., rows, columns) as matrices without copying, after the last two axes were
/// swapped if `transpose`. Nothing if a copy is needed first.
std::optional<Matrix> as_matrix(const Layout& layout, bool transpose);

/// What is computed, and the inner elements that are summed on their own.
struct Product {
  Matrix a;
  Matrix b;                ///< batch 1: shared by all
  std::int64_t run = 0;    ///< inner elements that are summed before they are added to the others
  std::int64_t apart = 1;  ///< above 1, the sums of so many runs go to scratch first
  /// Elements of scratch needed.
  std::int64_t scratch() const { return apart > 1 ? apart * a.rows * b.columns : 0; }
};

Product plan_product(const Matrix& a, const Matrix& b);

/// out (contiguous) = a * b. T is float or double. An element is a function of its row of a, its
/// column of b and their length alone: the same bits whatever is beside it, however the operands
/// are stored, on any number of threads, and on all processors with fused multiply-add.
template <class T>
void multiply(ThreadPool& pool, const Product& product, const T* a, const T* b, T* out, T* scratch);

}  // namespace segfuse::engine
