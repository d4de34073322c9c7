#pragma once
// Matrix products over strided arrays, through a BLAS where there is one. The work is cut into
// panels by sizes alone, so the bits do not depend on the number of threads.

#include <string_view>

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

/// How a product is cut.
struct Product {
  Matrix a;
  Matrix b;                 ///< batch 1: shared by all
  std::int64_t panel = 0;   ///< rows of a of one task
  std::int64_t chunk = 0;   ///< inner elements of one task
  std::int64_t chunks = 1;  ///< above 1, partial products go to scratch and are summed in order
  /// Elements of scratch needed.
  std::int64_t scratch() const { return chunks > 1 ? chunks * a.rows * b.columns : 0; }
};

Product plan_product(const Matrix& a, const Matrix& b);

/// Rows to which a task's last rows are filled up with zeros, so that no product is one that the
/// library rounds in another way because it is small. Of `rows` by k, times k by n.
std::int64_t padded_rows(std::int64_t rows, std::int64_t n, std::int64_t k);

/// out (contiguous) = a * b. T is float or double. When a is stored by rows, a row's result depends
/// on that row and its index alone, whatever rows come after it and whatever else is in the batch.
template <class T>
void multiply(ThreadPool& pool, const Product& product, const T* a, const T* b, T* out, T* scratch);

}  // namespace segfuse::engine
