#include "engine/exec/matmul.h"

#include <algorithm>
#include <vector>

#include "engine/exec/blas.h"
#include "engine/exec/move.h"
#include "engine/executable.h"

namespace segfuse::engine {
namespace {

/// One block of a product: c = a * b, c by rows.
template <class T>
struct Gemm {
  std::int64_t m, n, k;
  const T* a;
  const T* b;
  bool a_by_columns, b_by_columns;
  std::int64_t lda, ldb;
  T* c;
  std::int64_t ldc;
};

template <class T>
void call_blas(Blas::Gemm<T> function, const Gemm<T>& g) {
  auto order = [](bool by_columns) { return by_columns ? Blas::kTranspose : Blas::kNoTranspose; };
  const BlasCall permission;
  function(Blas::kRowMajor, order(g.a_by_columns), order(g.b_by_columns), static_cast<int>(g.m),
           static_cast<int>(g.n), static_cast<int>(g.k), T(1), g.a, static_cast<int>(g.lda), g.b,
           static_cast<int>(g.ldb), T(0), g.c, static_cast<int>(g.ldc));
}

/// By loops of our own.
template <class T>
void gemm_by_loops(const Gemm<T>& g) {
  constexpr std::int64_t kInner = 128;
  for (std::int64_t i = 0; i < g.m; ++i) std::fill_n(g.c + i * g.ldc, g.n, T(0));
  for (std::int64_t k0 = 0; k0 < g.k; k0 += kInner)
    for (std::int64_t i = 0; i < g.m; ++i)
      for (std::int64_t k = k0; k < std::min(g.k, k0 + kInner); ++k) {
        const T x = g.a[g.a_by_columns ? k * g.lda + i : i * g.lda + k];
        T* c = g.c + i * g.ldc;
        const T* b = g.b + (g.b_by_columns ? k : k * g.ldb);
        if (g.b_by_columns) {
          for (std::int64_t j = 0; j < g.n; ++j) c[j] += x * b[j * g.ldb];
        } else {
          for (std::int64_t j = 0; j < g.n; ++j) c[j] += x * b[j];
        }
      }
}

void gemm(const Gemm<float>& g) {
  blas().sgemm != nullptr ? call_blas(blas().sgemm, g) : gemm_by_loops(g);
}
void gemm(const Gemm<double>& g) {
  blas().dgemm != nullptr ? call_blas(blas().dgemm, g) : gemm_by_loops(g);
}

/// Bands of equal size, a multiple of 16, of about `wanted` each.
std::int64_t even_band(std::int64_t size, std::int64_t wanted) {
  const std::int64_t bands = std::max<std::int64_t>(1, (size + wanted - 1) / wanted);
  return std::max<std::int64_t>(16, ((size + bands - 1) / bands + 15) / 16 * 16);
}

// Libraries round differently from row to row: at the end of a panel, in small products, and by the
// row's place among the 6, 8, 12 or 16 that a kernel holds in registers. With panels that begin at
// the first row of a matrix, are a multiple of kRowPeriod long and never small, a row's result
// depends on its content and its index alone, not on the rows beside it.
constexpr std::int64_t kPanelRows = 4 * kRowPeriod;
constexpr std::int64_t kSmallProduct = 1 << 20;  // OpenBLAS: 100^3

/// A product whose rows are filled up with zeros to `rows`.
template <class T>
void gemm_padded(const Gemm<T>& g, std::int64_t rows) {
  if (g.m == rows || g.a_by_columns) return gemm(g);
  thread_local std::vector<T> a;
  thread_local std::vector<T> c;
  a.assign(static_cast<std::size_t>(rows * g.k), T(0));
  c.resize(static_cast<std::size_t>(rows * g.n));
  for (std::int64_t i = 0; i < g.m; ++i) std::copy_n(g.a + i * g.lda, g.k, a.data() + i * g.k);
  Gemm<T> whole = g;
  whole.m = rows;
  whole.a = a.data();
  whole.lda = g.k;
  whole.c = c.data();
  whole.ldc = g.n;
  gemm(whole);
  for (std::int64_t i = 0; i < g.m; ++i) std::copy_n(c.data() + i * g.n, g.n, g.c + i * g.ldc);
}

template <class T>
void sum_chunks(ThreadPool& pool, const T* scratch, std::int64_t size, std::int64_t chunks,
                T* out) {
  pool.for_ranges(size, kTaskElements / 4, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) out[i] = scratch[i];
    for (std::int64_t c = 1; c < chunks; ++c)
      for (std::int64_t i = begin; i < end; ++i) out[i] += scratch[c * size + i];
  });
}

}  // namespace

std::int64_t padded_rows(std::int64_t rows, std::int64_t n, std::int64_t k) {
  const std::int64_t least = kSmallProduct / (n * k) + 1;
  const std::int64_t wanted = (std::max(rows, least) + kRowPeriod - 1) / kRowPeriod * kRowPeriod;
  return std::min(wanted, kPanelRows);
}

std::string_view matmul_library() { return blas().name; }

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
  Product p{a, b, std::max<std::int64_t>(a.rows, 1), std::max<std::int64_t>(a.columns, 1), 1};
  if (!a.by_columns) {
    p.panel = kPanelRows;
    return p;
  }
  const std::int64_t work = a.rows * a.columns * b.columns;
  if (work < 1 << 18) return p;
  p.panel = even_band(a.rows, std::max<std::int64_t>(128, a.rows / 64));
  const std::int64_t tasks = a.batch * ((a.rows + p.panel - 1) / p.panel);
  if (tasks < 4 && a.batch == 1 && a.columns >= 2048 && a.rows * b.columns <= 1 << 16) {
    p.panel = a.rows;
    p.chunk = even_band(a.columns, std::max<std::int64_t>(1024, a.columns / 16));
    p.chunks = (a.columns + p.chunk - 1) / p.chunk;
  }
  return p;
}

template <class T>
void multiply(ThreadPool& pool, const Product& p, const T* a, const T* b, T* out, T* scratch) {
  const std::int64_t m = p.a.rows;
  const std::int64_t n = p.b.columns;
  const std::int64_t k = p.a.columns;
  if (p.a.batch * m * n == 0) return;
  if (k == 0) {
    std::fill_n(out, p.a.batch * m * n, T(0));
    return;
  }
  prepare_blas(pool.size());
  const std::int64_t panels = (m + p.panel - 1) / p.panel;
  const std::int64_t work = p.panel * n * p.chunk;
  const std::int64_t grain = std::max<std::int64_t>(1, (1 << 18) / std::max<std::int64_t>(1, work));
  pool.for_ranges(p.a.batch * panels * p.chunks, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t task = begin; task < end; ++task) {
      const std::int64_t chunk = task % p.chunks * p.chunk;
      const std::int64_t row = task / p.chunks % panels * p.panel;
      const std::int64_t batch = task / p.chunks / panels;
      const T* first_a = a + batch * p.a.batch_stride + row * (p.a.by_columns ? 1 : p.a.leading) +
                         chunk * (p.a.by_columns ? p.a.leading : 1);
      const T* first_b = b + batch * p.b.batch_stride + chunk * (p.b.by_columns ? 1 : p.b.leading);
      T* target = p.chunks > 1 ? scratch + task % p.chunks * m * n : out + batch * m * n;
      const Gemm<T> part{std::min(p.panel, m - row),
                         n,
                         std::min(p.chunk, k - chunk),
                         first_a,
                         first_b,
                         p.a.by_columns,
                         p.b.by_columns,
                         p.a.leading,
                         p.b.leading,
                         target + row * n,
                         n};
      gemm_padded(part, padded_rows(part.m, n, k));
    }
  });
  if (p.chunks > 1) sum_chunks(pool, scratch, m * n, p.chunks, out);
}

template void multiply<float>(ThreadPool&, const Product&, const float*, const float*, float*,
                              float*);
template void multiply<double>(ThreadPool&, const Product&, const double*, const double*, double*,
                               double*);

}  // namespace segfuse::engine
