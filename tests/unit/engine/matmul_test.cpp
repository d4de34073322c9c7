// A row's product does not depend on the rows that follow: a sequence decodes alone as in a batch
// that is padded to the longest.

#include "engine/exec/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <vector>

#include "base/rng.h"
#include "engine/exec/blas.h"

namespace segfuse::engine {
namespace {

Matrix by_rows(std::int64_t rows, std::int64_t columns) {
  Matrix m;
  m.rows = rows;
  m.columns = columns;
  m.leading = columns;
  return m;
}

std::vector<float> random_values(std::int64_t n, Rng& rng) {
  std::vector<float> values(static_cast<std::size_t>(n));
  for (float& v : values) v = static_cast<float>(rng.normal());
  return values;
}

/// OpenBLAS takes kernels without AVX on a processor that came after it.
TEST(Multiply, HasKernelsOfThisProcessor) {
#if defined(__x86_64__)
  if (std::getenv("OPENBLAS_CORETYPE") != nullptr || !__builtin_cpu_supports("avx2") ||
      !__builtin_cpu_supports("fma"))
    GTEST_SKIP() << "the kernels are what they have to be";
  for (const char* old : {"Prescott", "Core2", "Penryn", "Dunnington", "Nehalem"})
    EXPECT_NE(blas().core, old);
#endif
}

TEST(Multiply, RowIsTheSameWhateverFollows) {
  ThreadPool pool(2);
  Rng rng(5);
  constexpr std::int64_t kRows = 403;
  for (const std::int64_t k : {1, 7, 40, 192, 513}) {
    for (const std::int64_t n : {1, 3, 16, 45, 200}) {
      const std::vector<float> a = random_values(kRows * k, rng);
      const std::vector<float> b = random_values(k * n, rng);
      std::vector<float> all(static_cast<std::size_t>(kRows * n));
      multiply(pool, plan_product(by_rows(kRows, k), by_rows(k, n)), a.data(), b.data(), all.data(),
               static_cast<float*>(nullptr));
      for (const std::int64_t rows : {1, 2, 5, 33, 130, 402}) {
        std::vector<float> some(static_cast<std::size_t>(rows * n), NAN);
        multiply(pool, plan_product(by_rows(rows, k), by_rows(k, n)), a.data(), b.data(),
                 some.data(), static_cast<float*>(nullptr));
        const std::vector<float> expected(all.begin(), all.begin() + rows * n);
        ASSERT_EQ(some, expected) << rows << " rows, k " << k << ", n " << n;
      }
    }
  }
}

/// The parts of a long inner axis end with it: what lies behind is not read.
TEST(Multiply, OfALongInnerAxisReadsNoMore) {
  ThreadPool pool(2);
  Rng rng(6);
  constexpr std::int64_t kRows = 16, kInner = 5000, kColumns = 17, kBehind = 512;
  Matrix left = by_rows(kRows, kInner);
  left.by_columns = true;
  left.leading = kRows;
  const auto whole_numbers = [&](std::int64_t n, std::int64_t behind) {
    std::vector<float> values(static_cast<std::size_t>(n + behind), NAN);
    for (std::int64_t i = 0; i < n; ++i)
      values[static_cast<std::size_t>(i)] = static_cast<float>(rng.below(9)) - 4;
    return values;
  };
  const std::vector<float> a = whole_numbers(kInner * kRows, kBehind * kRows);
  const std::vector<float> b = whole_numbers(kInner * kColumns, kBehind * kColumns);
  const Product product = plan_product(left, by_rows(kInner, kColumns));
  ASSERT_GT(product.chunks, 1);
  ASSERT_NE(kInner % product.chunk, 0);
  std::vector<float> expected(static_cast<std::size_t>(kRows * kColumns));
  for (std::int64_t k = 0; k < kInner; ++k)
    for (std::int64_t i = 0; i < kRows; ++i)
      for (std::int64_t j = 0; j < kColumns; ++j)
        expected[static_cast<std::size_t>(i * kColumns + j)] +=
            a[static_cast<std::size_t>(k * kRows + i)] *
            b[static_cast<std::size_t>(k * kColumns + j)];
  std::vector<float> found(expected.size());
  std::vector<float> scratch(static_cast<std::size_t>(product.scratch()));
  multiply(pool, product, a.data(), b.data(), found.data(), scratch.data());
  EXPECT_EQ(found, expected);
}

/// Such rows are those of windows.
TEST(Multiply, RowsThatOverlapAreCopied) {
  const Layout windows{{5, 3}, {1, 1}, 0};
  EXPECT_FALSE(as_matrix(windows, false));
  EXPECT_FALSE(as_matrix(windows, true));
  const Layout apart{{5, 3}, {3, 1}, 0};
  ASSERT_TRUE(as_matrix(apart, false));
  EXPECT_FALSE(as_matrix(apart, false)->by_columns);
  ASSERT_TRUE(as_matrix(apart, true));
  EXPECT_TRUE(as_matrix(apart, true)->by_columns);
}

/// OpenBLAS has other kernels for products of up to 100^3 on some processors: what is handed to it
/// is larger, or a whole panel, and a multiple of the rows that a kernel holds.
TEST(Multiply, NoSmallProductIsHandedToTheLibrary) {
  constexpr std::int64_t kPanel = 192;
  for (const std::int64_t k : {1, 7, 40, 192, 513, 4096})
    for (const std::int64_t n : {1, 3, 16, 45, 200, 4096})
      for (const std::int64_t rows : {1, 2, 47, 48, 49, 130, 191, 192}) {
        const std::int64_t filled = padded_rows(rows, n, k);
        EXPECT_GE(filled, rows);
        EXPECT_LE(filled, kPanel);
        EXPECT_EQ(filled % 48, 0);
        EXPECT_TRUE(filled == kPanel || filled * n * k > 100 * 100 * 100)
            << rows << " rows, k " << k << ", n " << n;
      }
}

}  // namespace
}  // namespace segfuse::engine
