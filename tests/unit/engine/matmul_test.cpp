// Products of matrices have the bits of one sum, which is written out here, wherever an element
// lies: a sequence decodes alone as in a batch that is padded to the longest.

#include "engine/exec/matmul.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "support/vector_widths.h"

namespace segfuse::engine {
namespace {

/// A matrix with what lies around it: what is not part of it is NaN.
template <class T>
struct Stored {
  Matrix view;
  std::vector<T> memory;

  Stored(std::int64_t rows, std::int64_t columns, bool by_columns, std::int64_t gap, Rng& rng,
         std::int64_t batch = 1) {
    view.batch = batch;
    view.rows = rows;
    view.columns = columns;
    view.by_columns = by_columns;
    view.leading = std::max<std::int64_t>(1, (by_columns ? rows : columns) + gap);
    const std::int64_t size = view.leading * (by_columns ? columns : rows);
    view.batch_stride = batch > 1 ? size : 0;
    memory.assign(static_cast<std::size_t>(batch * size + gap),
                  std::numeric_limits<T>::quiet_NaN());
    for (std::int64_t n = 0; n < batch; ++n)
      for (std::int64_t i = 0; i < rows; ++i)
        for (std::int64_t j = 0; j < columns; ++j) at(n, i, j) = static_cast<T>(rng.normal());
  }
  T& at(std::int64_t n, std::int64_t i, std::int64_t j) {
    const std::int64_t outer = view.by_columns ? j : i;
    const std::int64_t inner = view.by_columns ? i : j;
    return memory[static_cast<std::size_t>(n * view.batch_stride + outer * view.leading + inner)];
  }
};

/// The inner elements of a run, of the inner length alone: at least 2048, and at most 16 runs.
std::int64_t documented_run(std::int64_t inner) {
  std::int64_t run = 2048;
  while (run * 16 < inner) run += 256;
  return run;
}

/// The element in the documented order: fused multiply-add within 256 inner elements, the sums of
/// these within a run, and the sums of the runs.
template <class T>
T element(Stored<T>& a, Stored<T>& b, std::int64_t n, std::int64_t i, std::int64_t j) {
  const std::int64_t inner = a.view.columns;
  const std::int64_t run = documented_run(inner);
  const std::int64_t of_b = b.view.batch > 1 ? n : 0;
  T all = 0;
  for (std::int64_t from = 0; from < inner; from += run) {
    T sum = 0;
    for (std::int64_t k0 = from; k0 < std::min(inner, from + run); k0 += 256) {
      T block = 0;
      for (std::int64_t k = k0; k < std::min({inner, from + run, k0 + 256}); ++k)
        block = std::fma(a.at(n, i, k), b.at(of_b, k, j), block);
      sum = k0 == from ? block : sum + block;
    }
    all = from == 0 ? sum : all + sum;
  }
  return all;
}

template <class T>
std::vector<T> multiplied(ThreadPool& pool, const Stored<T>& a, const Stored<T>& b) {
  const Product product = plan_product(a.view, b.view);
  std::vector<T> out(static_cast<std::size_t>(a.view.batch * a.view.rows * b.view.columns), T(NAN));
  std::vector<T> scratch(static_cast<std::size_t>(product.scratch()), T(NAN));
  multiply(pool, product, a.memory.data(), b.memory.data(), out.data(), scratch.data());
  return out;
}

bool fuses() {
#if defined(__x86_64__)
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
#else
  return true;
#endif
}

template <class T>
class Products : public ::testing::Test {
 protected:
  ThreadPool pool_{2};
  Rng rng_{5};

  void expect_elements(Stored<T>& a, Stored<T>& b) {
    const std::vector<T> all = multiplied(pool_, a, b);
    const std::int64_t m = a.view.rows, n = b.view.columns;
    const auto count = static_cast<std::int64_t>(all.size());
    // All of small products, and of others as many as a scalar loop computes in a moment.
    const std::int64_t tried = std::clamp<std::int64_t>(4'000'000 / (a.view.columns + 1), 50, 1000);
    const std::int64_t step = std::max<std::int64_t>(1, count / tried | 1);
    for (std::int64_t at = 0; at < count; at += step) {
      const T expected = element(a, b, at / (m * n), at / n % m, at % n);
      const T found = all[static_cast<std::size_t>(at)];
      if (fuses()) {
        ASSERT_EQ(found, expected) << "element " << at;
      } else {
        ASSERT_NEAR(found, expected, 1e-3) << "element " << at;
      }
    }
    EXPECT_TRUE(std::ranges::none_of(all, [](T x) { return std::isnan(x); }));
  }
};
using Types = ::testing::Types<float, double>;
TYPED_TEST_SUITE(Products, Types);

TYPED_TEST(Products, AreTheDocumentedSums) {
  Rng& rng = this->rng_;
  for (int trial = 0; trial < 300; ++trial) {
    const std::int64_t sizes[] = {1,  2,  3,  4,  5,  7,   8,   15,  16, 17,
                                  33, 48, 49, 64, 65, 100, 130, 257, 400};
    const auto size = [&] { return sizes[rng.below(std::size(sizes))]; };
    const std::int64_t m = size(), n = size(), k = size();
    const std::int64_t batch = rng.below(4) == 0 ? 3 : 1;
    const bool shared = rng.below(2) == 0;
    const bool a_by_columns = rng.below(2) == 0, b_by_columns = rng.below(2) == 0;
    const std::int64_t gap_a = rng.below(3) == 0 ? 5 : 0, gap_b = rng.below(3) == 0 ? 700 : 0;
    SCOPED_TRACE(testing::Message()
                 << batch << " x " << m << " x " << n << " x " << k << (a_by_columns ? ", a" : "")
                 << (b_by_columns ? ", b" : "") << " by columns, gaps " << gap_a << ", " << gap_b);
    Stored<TypeParam> a(m, k, a_by_columns, gap_a, rng, batch);
    Stored<TypeParam> b(k, n, b_by_columns, gap_b, rng, shared ? 1 : batch);
    this->expect_elements(a, b);
  }
}

/// Above a run, in tasks of their own for few results and one after the other for many.
TYPED_TEST(Products, OfLongInnerAxes) {
  for (const std::int64_t k : {2047, 2048, 2049, 5000, 40001})
    for (const auto& [m, n] :
         {std::pair<std::int64_t, std::int64_t>{16, 17}, {300, 250}, {1, 3}, {130, 2}, {2, 130}})
      for (const bool by_columns : {false, true}) {
        if (k > 5000 && m * n > 1000) continue;
        SCOPED_TRACE(testing::Message() << m << " x " << n << " x " << k);
        Stored<TypeParam> a(m, k, by_columns, 0, this->rng_);
        Stored<TypeParam> b(k, n, !by_columns, 0, this->rng_);
        EXPECT_EQ(plan_product(a.view, b.view).apart > 1, k > 2048 && m * n <= 1 << 16);
        this->expect_elements(a, b);
      }
}

TYPED_TEST(Products, OfNoInnerElementsAreZero) {
  Stored<TypeParam> a(3, 0, false, 0, this->rng_);
  Stored<TypeParam> b(0, 2, false, 0, this->rng_);
  EXPECT_EQ(multiplied(this->pool_, a, b), std::vector<TypeParam>(6, 0));
  Stored<TypeParam> none(0, 4, false, 0, this->rng_);
  Stored<TypeParam> some(4, 2, false, 0, this->rng_);
  EXPECT_TRUE(multiplied(this->pool_, none, some).empty());
}

/// 0 times what is not finite is NaN, and nothing else becomes it.
TYPED_TEST(Products, KeepWhatIsNotFinite) {
  Stored<TypeParam> a(20, 30, false, 0, this->rng_);
  Stored<TypeParam> b(30, 40, true, 0, this->rng_);
  b.at(0, 7, 11) = std::numeric_limits<TypeParam>::infinity();
  a.at(0, 5, 7) = 0;
  const std::vector<TypeParam> all = multiplied(this->pool_, a, b);
  for (std::int64_t i = 0; i < 20; ++i)
    for (std::int64_t j = 0; j < 40; ++j) {
      const TypeParam x = all[static_cast<std::size_t>(i * 40 + j)];
      EXPECT_EQ(std::isnan(x), i == 5 && j == 11);
      EXPECT_EQ(std::isinf(x), i != 5 && j == 11);
    }
}

TYPED_TEST(Products, HaveTheSameBitsOnAnyNumberOfThreads) {
  Stored<TypeParam> a(700, 300, false, 0, this->rng_);
  Stored<TypeParam> b(300, 600, true, 0, this->rng_);
  ThreadPool one(1), many(7);
  EXPECT_EQ(multiplied(one, a, b), multiplied(many, a, b));
}

TYPED_TEST(Products, HaveTheSameBitsOnAllProcessorsThatFuse) {
  Stored<TypeParam> a(75, 530, false, 0, this->rng_);
  Stored<TypeParam> b(530, 91, true, 0, this->rng_);
  const std::vector<TypeParam> best = multiplied(this->pool_, a, b);
  const int tried = segfuse::testing::for_each_vector_width(
      [&](const char* name) { EXPECT_EQ(multiplied(this->pool_, a, b), best) << name; });
  if (tried == 0) GTEST_SKIP() << "this processor has one kind of vectors";
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

}  // namespace
}  // namespace segfuse::engine
