#include "engine/exec/matmul.h"

#include <algorithm>
#include <vector>

#include "base/sizes.h"
#include "engine/exec/growing_memory.h"
#include "engine/exec/move.h"
#include "engine/kernels/product_kernels.h"

namespace segfuse::engine {
namespace {

/// Inner elements of a run at the least, and runs at the most.
constexpr std::int64_t kMinRun = 2048;
constexpr std::int64_t kMaxRuns = 16;
/// Results up to which runs are tasks, since blocks of so few results would not be enough of them.
constexpr std::int64_t kFewResults = 1 << 16;
/// Multiplications from which on a task is worth a thread.
constexpr std::int64_t kWorthATask = 1 << 18;
/// Of a task at the most. Its rows share what is packed of b, its columns the rows of a.
constexpr std::int64_t kTaskRows = 384;
constexpr std::int64_t kTaskResults = kTaskRows * 512;
/// The kernels hold so many rows in registers, and pack so many columns.
constexpr std::int64_t kRowUnit = 6;
constexpr std::int64_t kColumnUnit = 64;

/// Of blocks of about equal size, multiples of `unit`, of at most about `most`.
constexpr std::int64_t equal_block(std::int64_t size, std::int64_t most, std::int64_t unit) {
  return ceil_divide(ceil_divide(size, ceil_divide(size, most)), unit) * unit;
}

/// How the results are divided into tasks. No bit depends on it.
struct Division {
  std::int64_t rows, columns, inner;  ///< of a task
  std::int64_t high, wide, deep;      ///< tasks of a matrix
  std::int64_t work;                  ///< multiplications of a task

  Division(const Product& p, int threads)
      : rows(equal_block(p.a.rows, kTaskRows, kRowUnit)),
        columns(equal_block(p.b.columns, kTaskResults / rows, kColumnUnit)),
        inner(p.apart > 1 ? p.run : p.a.columns),
        deep(p.apart) {
    count(p);
    while (p.a.batch * high * wide * deep < 2 * threads && work >= 2 * kWorthATask &&
           (rows > kRowUnit || columns > kColumnUnit)) {
      if (columns > std::max(rows, kColumnUnit)) {
        columns = equal_block(columns, ceil_divide(columns, 2), kColumnUnit);
      } else {
        rows = equal_block(rows, ceil_divide(rows, 2), kRowUnit);
      }
      count(p);
    }
  }

 private:
  void count(const Product& p) {
    high = ceil_divide(p.a.rows, rows);
    wide = ceil_divide(p.b.columns, columns);
    work = std::min(rows, p.a.rows) * std::min(columns, p.b.columns) * inner;
  }
};

/// One product of matrices.
template <class T>
class Multiplication {
 public:
  Multiplication(const Product& p, const T* a, const T* b, T* out, T* scratch)
      : p_(p), a_(a), b_(b), out_(out), scratch_(scratch) {}

  void run(ThreadPool& pool) const {
    const Division d(p_, pool.size());
    const std::int64_t grain = std::max<std::int64_t>(1, kWorthATask / d.work);
    pool.for_ranges(p_.a.batch * d.high * d.wide * d.deep, grain,
                    [&](std::int64_t begin, std::int64_t end) {
                      for (std::int64_t task = begin; task < end; ++task) part(d, task);
                    });
    if (p_.apart > 1) add_runs(pool);
  }

 private:
  void part(const Division& d, std::int64_t task) const {
    const std::int64_t column = task % d.wide * d.columns;
    const std::int64_t row = task / d.wide % d.high * d.rows;
    const std::int64_t run = task / d.wide / d.high % d.deep;
    const std::int64_t batch = task / d.wide / d.high / d.deep;
    const std::int64_t size = p_.a.rows * p_.b.columns;
    T* results = p_.apart > 1 ? scratch_ + run * size : out_ + batch * size;
    const std::int64_t end = std::min(p_.a.columns, (run + 1) * d.inner);
    auto& sums = of_thread<std::vector<T>, struct ProductSums>();
    ProductBlock<T> block;
    block.m = std::min(d.rows, p_.a.rows - row);
    block.n = std::min(d.columns, p_.b.columns - column);
    block.a_row = p_.a.by_columns ? 1 : p_.a.leading;
    block.a_column = p_.a.by_columns ? p_.a.leading : 1;
    block.b_row = p_.b.by_columns ? 1 : p_.b.leading;
    block.b_column = p_.b.by_columns ? p_.b.leading : 1;
    block.c = results + row * p_.b.columns + column;
    block.c_row = p_.b.columns;
    for (std::int64_t k = run * d.inner; k < end; k += p_.run) {
      block.k = std::min(p_.run, end - k);
      block.a = a_ + batch * p_.a.batch_stride + row * block.a_row + k * block.a_column;
      block.b = b_ + batch * p_.b.batch_stride + k * block.b_row + column * block.b_column;
      if (k == run * d.inner) {
        multiply_block(block);
      } else {
        add_product(block, sums);
      }
    }
  }

  static void add_product(ProductBlock<T> block, std::vector<T>& sums) {
    T* to = block.c;
    const std::int64_t to_row = block.c_row;
    sums.resize(static_cast<std::size_t>(block.m * block.n));
    block.c = sums.data();
    block.c_row = block.n;
    multiply_block(block);
    for (std::int64_t i = 0; i < block.m; ++i)
      for (std::int64_t j = 0; j < block.n; ++j) to[i * to_row + j] += sums[i * block.n + j];
  }

  void add_runs(ThreadPool& pool) const {
    const std::int64_t size = p_.a.rows * p_.b.columns;
    pool.for_ranges(size, kTaskElements / 4, [&](std::int64_t begin, std::int64_t end) {
      std::copy(scratch_ + begin, scratch_ + end, out_ + begin);
      for (std::int64_t run = 1; run < p_.apart; ++run)
        for (std::int64_t i = begin; i < end; ++i) out_[i] += scratch_[run * size + i];
    });
  }

  const Product& p_;
  const T *a_, *b_;
  T *out_, *scratch_;
};

}  // namespace

std::optional<Matrix> as_matrix(const Layout& layout, bool transpose) {
  const std::size_t rank = layout.shape.size();
  const auto leading_axes = static_cast<std::ptrdiff_t>(rank) - 2;
  Shape shape = layout.shape;
  Shape strides = layout.strides;
  if (transpose) {
    std::swap(shape[rank - 1], shape[rank - 2]);
    std::swap(strides[rank - 1], strides[rank - 2]);
  }
  Matrix matrix;
  matrix.columns = shape[rank - 1];
  const Nest batch = collapse({shape.begin(), shape.begin() + leading_axes},
                              {{strides.begin(), strides.begin() + leading_axes}});
  if (batch.sizes.size() > 1) return {};
  const std::int64_t outer = batch.sizes.empty() ? 1 : batch.sizes[0];
  const std::int64_t outer_stride = batch.sizes.empty() ? 0 : batch.strides[0][0];
  matrix.rows = shape[rank - 2];
  matrix.batch = outer;
  matrix.batch_stride = outer_stride;
  const std::int64_t row = matrix.rows == 1 ? matrix.columns : strides[rank - 2];
  const std::int64_t column = matrix.columns == 1 ? 1 : strides[rank - 1];
  if (column == 1 && row >= matrix.columns) {
    matrix.leading = row;
  } else if ((row == 1 || matrix.rows == 1) && column >= matrix.rows) {
    matrix.leading = column;
    matrix.by_columns = true;
  } else {
    return {};
  }
  matrix.leading = std::max<std::int64_t>(matrix.leading, 1);
  return matrix;
}

Product plan_product(const Matrix& a, const Matrix& b) {
  Product p{a, b};
  // Of the length alone, since bits depend on it.
  p.run =
      std::max(kMinRun, ceil_divide(ceil_divide(a.columns, kMaxRuns), kBlockInner) * kBlockInner);
  if (a.batch == 1 && a.rows * b.columns <= kFewResults && a.columns > p.run)
    p.apart = ceil_divide(a.columns, p.run);
  return p;
}

template <class T>
void multiply(ThreadPool& pool, const Product& p, const T* a, const T* b, T* out, T* scratch) {
  const std::int64_t size = p.a.batch * p.a.rows * p.b.columns;
  if (size == 0) return;
  if (p.a.columns == 0) {
    std::fill_n(out, size, T(0));
    return;
  }
  Multiplication<T>(p, a, b, out, scratch).run(pool);
}

template void multiply<float>(ThreadPool&, const Product&, const float*, const float*, float*,
                              float*);
template void multiply<double>(ThreadPool&, const Product&, const double*, const double*, double*,
                               double*);

}  // namespace segfuse::engine
