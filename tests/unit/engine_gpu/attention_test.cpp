// Attention on a device, forward and backward, against its meaning row by row.

#include <fmt/format.h>

#include <array>
#include <cmath>
#include <limits>
#include <tuple>

#include "compiler/autodiff.h"
#include "support/attention_case.h"
#include "unit/engine_gpu/device_test.h"

namespace segfuse::engine {
namespace {

using segfuse::testing::Attention;

constexpr double kInf = std::numeric_limits<double>::infinity();
constexpr double kNaN = std::numeric_limits<double>::quiet_NaN();
constexpr DType kTypes[] = {DType::kF32, DType::kF64, DType::kBF16};

class AttentionOnDevice : public testing::OnDevice {
 protected:
  void check(const Attention& a, const std::vector<Tensor>& inputs, const std::string& what) {
    SCOPED_TRACE(what);
    compare(a.fusion(), inputs, a.tolerance());
  }
  void check(const Attention& a, const std::string& what) { check(a, a.inputs(), what); }

  /// The memory of a run beside its inputs.
  void expect_linear_memory(DType dtype) {
    std::vector<double> bytes;
    for (const std::int64_t length : {128, 256, 512}) {
      Attention a;
      a.dtype = dtype;
      a.rows = a.columns = length;
      a.ahead = 0;
      const std::vector<Tensor> inputs = a.inputs();
      std::vector<Tensor> there;
      for (const Tensor& input : inputs) there.push_back(accelerator->upload(input));
      Executable executable(a.fusion(), pool, on_device());
      accelerator->synchronize();
      accelerator->heap().reset_peaks();
      const std::size_t before = accelerator->heap().statistics().peak_taken_bytes;
      executable.run(there);
      bytes.push_back(
          static_cast<double>(accelerator->heap().statistics().peak_taken_bytes - before));
    }
    EXPECT_GT(bytes[0], 0);
    EXPECT_LT(bytes[1], 2.1 * bytes[0]);
    EXPECT_LT(bytes[2], 2.1 * bytes[1]);
    EXPECT_LT(bytes[2], 512.0 * 512);
  }
};

INSTANTIATE_TEST_SUITE_P(On, AttentionOnDevice, ::testing::Values("simulated", "cuda"),
                         [](const auto& instance) { return std::string(instance.param); });

TEST_P(AttentionOnDevice, IsTheFormulaAtAllSizes) {
  for (const DType dtype : kTypes)
    for (const auto& [m, n, d, e] : std::vector<std::array<std::int64_t, 4>>{{1, 1, 1, 1},
                                                                             {130, 67, 3, 5},
                                                                             {65, 130, 17, 33},
                                                                             {1, 140, 4, 8},
                                                                             {129, 1, 8, 4},
                                                                             {3, 0, 2, 2},
                                                                             {0, 3, 2, 2},
                                                                             {4, 5, 0, 3},
                                                                             {4, 5, 3, 0}}) {
      Attention a;
      a.dtype = dtype;
      std::tie(a.rows, a.columns, a.inner, a.outer) = std::tuple(m, n, d, e);
      check(a, fmt::format("{}x{} of {} and {}", m, n, d, e));
      a.ahead = 0;
      a.leading = {1, 2};
      check(a, fmt::format("{}x{} of {} and {}, causal", m, n, d, e));
    }
}

TEST_P(AttentionOnDevice, HasKernelsForHeadsUpTo256) {
  for (const DType dtype : kTypes)
    for (const auto& [d, e] :
         std::vector<std::array<std::int64_t, 2>>{{64, 64}, {33, 80}, {128, 128}, {200, 256}}) {
      Attention a;
      a.dtype = dtype;
      a.rows = 70;
      a.columns = 40;
      a.inner = d;
      a.outer = e;
      a.ahead = 3;
      check(a, fmt::format("{} and {}", d, e));
    }
}

TEST_P(AttentionOnDevice, BiasesMasksAndBandsOfAllShapes) {
  Attention a;
  a.leading = {2, 2};
  a.rows = 101;
  a.columns = 140;
  a.inner = a.outer = 2;
  const std::vector<Shape> shapes{{2, 2, 101, 140}, {1, 1, 101, 140}, {2, 1, 1, 140},
                                  {1, 2, 101, 1},   {1, 1, 1, 1},     {2, 2, 1, 140}};
  const std::vector<std::optional<std::int64_t>> bands{{}, 0, -30, 39, 500};
  for (std::size_t i = 0; i < shapes.size(); ++i)
    for (const double fill : {-kInf, -1e9})
      for (const std::optional<std::int64_t> ahead : {bands[i % 5], bands[(i + 2) % 5]}) {
        a.dtype = (i % 2 == 0) == (fill == -kInf) ? DType::kF32 : DType::kBF16;
        a.fill = fill;
        a.ahead = ahead;
        a.bias = shapes[i];
        a.mask = shapes[(i + 2) % shapes.size()];
        a.gradient = i % 2 == 0;
        check(a, fmt::format("shapes {}, fill {}, ahead {}", i, fill, ahead.value_or(-999)));
      }
}

/// A bias of keys alone, as of padding: kernels read it once a tile.
TEST_P(AttentionOnDevice, PaddingIsABiasOfKeys) {
  for (const DType dtype : kTypes)
    for (const std::int64_t length : {1, 64, 150}) {
      Attention a;
      a.dtype = dtype;
      a.leading = {3, 2};
      a.rows = a.columns = length;
      a.inner = a.outer = 16;
      a.bias = Shape{3, 1, 1, length};
      std::vector<Tensor> inputs = a.inputs();
      const std::int64_t lengths[] = {length, (length + 1) / 2, 1};
      // Softmax does not see a shift, but the exponential of one would be infinite in rows and
      // columns beyond the last.
      const double shifts[] = {200, -200, 0};
      for (std::int64_t b = 0; b < 3; ++b)
        for (std::int64_t n = 0; n < length; ++n)
          inputs[3].set(b * length + n, n < lengths[b] ? shifts[b] : -1e9);
      check(a, inputs, fmt::format("{} of {}", name_of(dtype), length));
      a.ahead = 0;  // causal
      check(a, inputs, fmt::format("{} of {}, causal", name_of(dtype), length));
    }
}

TEST_P(AttentionOnDevice, RowsThatSeeNothingAreNaN) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Attention a;
    a.dtype = dtype;
    a.rows = 110;
    a.columns = 150;
    a.mask = Shape{2, 110, 150};
    std::vector<Tensor> inputs = a.inputs();
    for (const std::int64_t row : {0, 40, 109})
      for (std::int64_t n = 0; n < 150; ++n) inputs[3].set(row * 150 + n, 0);
    check(a, inputs, "masked rows");
    a.mask.reset();
    a.ahead = -100;  // none of the first 100 rows sees anything
    check(a, "a band that leaves rows out");
  }
}

TEST_P(AttentionOnDevice, NaNAndInfinitiesGoWhereTheyGo) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Attention a;
    a.dtype = dtype;
    a.leading = {1};
    a.rows = 140;
    a.columns = 200;
    // In the last row, and within a tile that a band hides from others.
    const std::int64_t within[] = {40 * a.inner, 170 * a.inner, 170 * a.outer, 40 * a.outer};
    for (const std::optional<std::int64_t> ahead : {std::optional<std::int64_t>(), {0}, {40}})
      for (std::size_t operand = 0; operand < 4; ++operand)
        for (const double what : {kNaN, kInf}) {
          a.ahead = ahead;
          std::vector<Tensor> inputs = a.inputs();
          Tensor& to = inputs[operand];
          to.set(std::isnan(what) ? to.size() - 2 : within[operand], what);
          check(a, inputs, fmt::format("{} in {}, ahead {}", what, operand, ahead.value_or(-999)));
        }
  }
}

TEST_P(AttentionOnDevice, LargeScoresDoNotOverflow) {
  Attention a;
  a.rows = 130;
  a.columns = 70;
  a.scale = 30;
  a.gradient = false;
  std::vector<Tensor> inputs = a.inputs();
  for (std::size_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < inputs[i].size(); ++j)
      inputs[i].set(j, std::round(inputs[i].at(j) * 2));  // exact products
  check(a, inputs, "whole numbers");
  a.dtype = DType::kBF16;
  inputs = a.inputs();
  for (std::size_t i = 0; i < 2; ++i)
    for (std::int64_t j = 0; j < inputs[i].size(); ++j)
      inputs[i].set(j, std::round(inputs[i].at(j) * 2));
  check(a, inputs, "whole numbers of bf16");
  a.scale = -1e4;
  a.dtype = DType::kF64;
  check(a, "large numbers");
  Attention hidden;  // rows of one large number have no digits left for their sums
  hidden.ahead = -3;
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const double fill : {-1e9, -1e30}) {
      hidden.dtype = dtype;
      hidden.fill = fill;
      check(hidden, fmt::format("rows of {}, {}", fill, name_of(dtype)));
    }
}

TEST_P(AttentionOnDevice, ReadsViewsAndGivesWantedGradientsOnly) {
  for (const DType dtype : {DType::kF32, DType::kBF16})
    for (const bool odd : {false, true}) {
      Rng rng(7);
      testing::TestProgram p;
      const auto heads = [&](std::int64_t length) {  // (2, length, 3, 8) as (2, 3, length, 8)
        const ir::ValId all =
            p.input(segfuse::testing::uniform(rng, dtype, {2, length, 3, odd ? 9 : 8}));
        return p.b.permute(odd ? p.b.slice_axis(all, 3, 1, 8) : all, {0, 2, 1, 3});
      };
      const ir::ValId q = heads(40);
      const ir::ValId k = heads(70);
      const ir::ValId v = heads(70);
      const ir::ValId g = heads(40);
      const std::vector<ir::ValId> operands{q, k, v};
      const auto results = p.b.make_all(ir::Op::attention, operands, {0.5, -kInf, ir::Extents{}});
      p.output(results[0]);
      const ir::ValId from[] = {results[0]};
      const ir::ValId with[] = {g};
      const ir::ValId wrt[] = {odd ? v : k};
      for (const ir::ValId to : compiler::vjp(p.fusion, from, with, wrt)) p.output(to);
      compare(p.fusion, p.inputs, dtype == DType::kF32 ? 1e-4 : 2e-2);
    }
}

TEST_P(AttentionOnDevice, ABatchHasTheBitsOfItsRowsAlone) {
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    Attention all;
    all.dtype = dtype;
    all.leading = {3};
    all.rows = 150;
    all.columns = 200;
    all.ahead = 20;
    Attention one = all;
    one.leading = {1};
    const std::vector<Tensor> inputs = all.inputs();
    const auto whole = Executable(all.fusion(), pool, on_device()).run(inputs);
    for (std::int64_t batch = 0; batch < 3; ++batch) {
      std::vector<Tensor> mine;
      for (const Tensor& input : inputs) {
        Shape shape = input.shape();
        shape[0] = 1;
        Tensor part(input.dtype(), shape);
        for (std::int64_t i = 0; i < part.size(); ++i)
          part.set(i, input.at(batch * part.size() + i));
        mine.push_back(part);
      }
      const auto alone = Executable(one.fusion(), pool, on_device()).run(mine);
      for (std::size_t o = 0; o < alone.size(); ++o)
        for (std::int64_t i = 0; i < alone[o].size(); ++i)
          ASSERT_EQ(alone[o].at(i), whole[o].at(batch * alone[o].size() + i)) << o << " " << i;
    }
  }
}

TEST_P(AttentionOnDevice, MemoryGrowsAsTheLengthDoes) { expect_linear_memory(DType::kF32); }
TEST_P(AttentionOnDevice, MemoryOfBF16GrowsAsTheLengthDoes) { expect_linear_memory(DType::kBF16); }

TEST_P(AttentionOnDevice, WhatHasNoKernelIsWrittenOut) {
  Attention a;
  a.inner = 300;
  check(a, "large rows");
  a.dtype = DType::kBF16;
  check(a, "large rows of bf16");
  a.dtype = DType::kF32;
  a.inner = 3;
  a.leading = {1, 1, 2, 1, 2, 1, 1};
  check(a, "many axes");
}

}  // namespace
}  // namespace segfuse::engine
