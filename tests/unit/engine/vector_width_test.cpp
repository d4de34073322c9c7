// Sums have the same bits with AVX2 and with AVX-512, in built-in loops and in attention.

#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/executable.h"
#include "ir/text.h"
#include "support/attention_case.h"
#include "support/tensors.h"
#include "support/vector_widths.h"

namespace segfuse::engine {
namespace {

using segfuse::testing::Attention;
using segfuse::testing::for_each_vector_width;
using segfuse::testing::same_bits;
using segfuse::testing::uniform;

/// The same bits, or a skipped test where there is one width only.
void expect_same_bits(const ir::Fusion& fusion, const std::vector<Tensor>& inputs,
                      const std::string& backend) {
  ThreadPool pool(2);
  std::vector<Tensor> first;
  const int tried = for_each_vector_width([&](const char* name) {
    const std::vector<Tensor> found = Executable(fusion, pool, {.backend = backend}).run(inputs);
    if (first.empty()) first = found;
    for (std::size_t o = 0; o < found.size(); ++o)
      EXPECT_TRUE(same_bits(found[o], first[o])) << name << ", output " << o;
  });
  if (tried < 2) GTEST_SKIP() << "this processor has one width of vectors";
}

class VectorWidths : public ::testing::TestWithParam<DType> {};

TEST_P(VectorWidths, GiveTheSameReductionsOfRows) {
  const std::string dtype(name_of(GetParam()));
  for (const char* op : {"sum", "prod", "max", "logsumexp", "welford"}) {
    for (const std::int64_t n : {1, 7, 15, 16, 31, 32, 33, 37, 64, 100, 511, 512, 1000, 5000}) {
      SCOPED_TRACE(std::string(op) + " of " + std::to_string(n));
      const bool two = std::string(op) == "welford";
      const std::string size = std::to_string(n);
      const ir::Fusion fusion =
          ir::parse("fusion \"f\" {\n  %0 = input \"x\" : " + dtype + "[3, " + size + "]\n  %1" +
                    (two ? ", %2" : "") + " = " + op + "(%0) {axes=[1]} : " + dtype + "[3]" +
                    (two ? ", " + dtype + "[3]" : "") + "\n  output %1\n" +
                    (two ? "  output %2\n" : "") + "}\n");
      Rng rng(static_cast<std::uint64_t>(n));
      expect_same_bits(fusion, {uniform(rng, GetParam(), {3, n}, 0.5, 1.6)}, "loops");
    }
  }
}

TEST_P(VectorWidths, GiveTheSameAttention) {
  for (const std::int64_t columns : {3, 16, 21, 130}) {
    SCOPED_TRACE(columns);
    Attention attention;
    attention.dtype = GetParam();
    attention.rows = 9;
    attention.columns = columns;
    expect_same_bits(attention.fusion(), attention.inputs(), "loops");
  }
}

INSTANTIATE_TEST_SUITE_P(, VectorWidths, ::testing::Values(DType::kF32, DType::kF64),
                         [](const auto& dtype) { return std::string(name_of(dtype.param)); });

}  // namespace
}  // namespace segfuse::engine
