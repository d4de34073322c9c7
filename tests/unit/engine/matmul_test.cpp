// A row's product does not depend on the rows that follow: a sequence decodes alone as in a batch
// that is padded to the longest.

#include "engine/exec/matmul.h"

#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "base/rng.h"

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
