// Rows of few elements lie across the lanes: every size around one and two vectors, forward and
// backward, against the interpreter's derived bounds, and the same bits for one thread and two.

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "compiler/autodiff.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "support/error_bounds.h"
#include "support/tensors.h"

namespace segfuse::engine {
namespace {

using ir::Builder;
using ir::ValId;
using segfuse::testing::Bounded;
using segfuse::testing::same_bits;

/// What a case is made of: rows of C elements, one number a row and one row.
struct Parts {
  Builder& b;
  ValId x, each_row, each_column;
};
struct Case {
  const char* name;
  std::function<ValId(Parts)> build;
};
void PrintTo(const Case& c, std::ostream* out) { *out << c.name; }

/// Values are f32; inputs and the output are of `dtype`.
ir::Fusion program(const Case& c, DType dtype, bool gradients) {
  ir::Fusion f(c.name);
  Builder b(f);
  const ir::Extent rows = f.symbol("R"), columns = f.symbol("C");
  const auto input = [&](const char* name, const ir::Extents& shape) {
    return b.cast(f.add_input(name, dtype, shape), DType::kF32);
  };
  const ValId x = input("x", {rows, columns});
  const ValId each_row = input("each row", {rows});
  const ValId each_column = input("each column", {columns});
  const ValId y = c.build({b, x, each_row, each_column});
  f.add_output(b.cast(y, dtype), "y");
  if (!gradients) return f;
  const ValId g[] = {f.add_input("g", f.val(y).dtype, f.val(y).shape)};
  const ValId of[] = {y};
  const ValId wrt[] = {x, each_row, each_column};
  for (const ValId gradient : compiler::vjp(f, of, g, wrt)) f.add_output(gradient);
  return f;
}

std::vector<Tensor> inputs_of(const ir::Fusion& f, std::int64_t rows, std::int64_t columns) {
  Rng rng(static_cast<std::uint64_t>(rows * 1000 + columns));
  std::vector<Tensor> all;
  for (const ir::Input& input : f.inputs()) {
    Shape shape;
    for (const ir::Extent& size : f.val(input.val).shape)
      shape.push_back(size.evaluate([&](ir::SymbolId id) {
        return f.storage().symbols[id.index].name == "R" ? rows : columns;
      }));
    all.push_back(segfuse::testing::uniform(rng, f.val(input.val).dtype, shape));
  }
  return all;
}

ValId columns_of(const Parts& p, ValId row) {
  return p.b.broadcast(row, {0}, p.b.fusion().val(p.x).shape);
}

std::vector<Case> cases() {
  return {
      {"softmax", [](const Parts& p) { return p.b.softmax(p.x, 1); }},
      {"log_softmax",
       [](const Parts& p) { return p.b.sub(p.x, columns_of(p, p.b.logsumexp(p.x, {1}))); }},
      {"layer_norm",
       [](const Parts& p) {
         return p.b.mul(p.b.layer_norm(p.x, p.each_column, p.each_column),
                        columns_of(p, p.each_row));
       }},
      {"rms_norm",
       [](const Parts& p) {
         const ValId mean = p.b.mean(p.b.square(p.x), {1});
         const ValId scale = p.b.rsqrt(p.b.add(mean, p.b.constant(0.5)));
         return p.b.mul(p.b.mul(p.x, columns_of(p, scale)), p.each_column);
       }},
      {"row_sum", [](const Parts& p) { return p.b.sum(p.b.mul(p.x, p.each_column), {1}); }},
      {"row_max", [](const Parts& p) { return p.b.max(p.x, {1}); }},
      {"column_sum",
       [](const Parts& p) { return p.b.sum(p.b.mul(p.x, columns_of(p, p.each_row)), {0}); }},
      {"whole_sum", [](const Parts& p) { return p.b.sum(p.b.mul(p.x, p.each_column), {0, 1}); }},
      {"column_softmax", [](const Parts& p) { return p.b.softmax(p.x, 0); }},
      {"pointwise",
       [](const Parts& p) {
         return p.b.mul(p.b.add(p.x, p.each_column), p.b.sigmoid(columns_of(p, p.each_row)));
       }},
      {"bias", [](const Parts& p) { return p.b.exp(p.b.add(p.x, p.each_column)); }},
      {"transposed",
       [](const Parts& p) { return p.b.exp(p.b.permute(p.b.add(p.x, p.each_column), {1, 0})); }},
  };
}

/// What outputs are, and how far off they may be. The gradient of a maximum asks whether numbers
/// are equal, of which nothing can be derived.
std::vector<Bounded> expected_of(const ir::Fusion& f, const std::vector<Tensor>& inputs,
                                 bool derived) {
  if (derived) return segfuse::testing::bounded_outputs(f, inputs);
  std::vector<Bounded> all;
  for (const Tensor& output : ir::interpret(f, inputs)) {
    Tensor bound(DType::kF64, output.shape());
    for (std::int64_t i = 0; i < output.size(); ++i)
      bound.set(i, 1e-5 * std::max(1.0, std::abs(output.at(i))));
    all.push_back({output, bound});
  }
  return all;
}

/// `rounding` is that of the outputs' type beyond f32's.
void expect_within(const std::vector<Tensor>& found, const std::vector<Bounded>& expected,
                   double rounding, const std::string& what) {
  for (std::size_t o = 0; o < found.size(); ++o)
    for (std::int64_t i = 0; i < found[o].size(); ++i) {
      const double value = found[o].at(i), exact = expected[o].value.at(i);
      if (value == exact || (std::isnan(value) && std::isnan(exact))) continue;
      const double bound = expected[o].bound.at(i);
      ASSERT_LE(std::abs(value - exact), bound * (1 + 0x1p-7) + rounding * std::abs(exact))
          << what << ", output " << o << " element " << i << ": " << value << ", expected "
          << exact;
    }
}

constexpr std::int64_t kColumns[] = {0, 1, 2, 3, 5, 7, 15, 16, 17, 31, 33, 64, 65};

class ShortRows : public ::testing::TestWithParam<Case> {};

TEST_P(ShortRows, AreWithinTheBoundsOfTheirProgram) {
  ThreadPool pool(1);
  const bool has_max = std::string_view(GetParam().name).find("max") != std::string_view::npos;
  for (const bool gradients : {false, true}) {
    const ir::Fusion f = program(GetParam(), DType::kF32, gradients);
    Executable executable(f, pool, {.poison = true});
    for (const std::int64_t rows : {0, 3, 150})
      for (const std::int64_t columns : kColumns) {
        const std::vector<Tensor> inputs = inputs_of(f, rows, columns);
        expect_within(executable.run(inputs), expected_of(f, inputs, !gradients || !has_max), 0,
                      fmt::format("{} x {}", rows, columns));
        if (HasFatalFailure()) return;
      }
  }
}

/// They move in another way, and only what is stored is rounded.
TEST_P(ShortRows, OfHalfPrecisionAreWithinThemToo) {
  ThreadPool pool(1);
  const ir::Fusion exact = program(GetParam(), DType::kF32, false);
  Executable executable(program(GetParam(), DType::kBF16, false), pool, {.poison = true});
  for (const std::int64_t columns : {1, 2, 3, 17, 33}) {
    std::vector<Tensor> inputs = inputs_of(exact, 150, columns);
    std::vector<Tensor> halves;
    for (Tensor& input : inputs) {
      halves.push_back(input.to(DType::kBF16));
      input = halves.back().to(DType::kF32);
    }
    expect_within(executable.run(halves), expected_of(exact, inputs, true), 0x1p-8,
                  fmt::format("{} columns", columns));
    if (HasFatalFailure()) return;
  }
}

TEST_P(ShortRows, HaveTheSameBitsForAnyNumberOfThreads) {
  const ir::Fusion f = program(GetParam(), DType::kF32, true);
  ThreadPool one(1);
  ThreadPool two(2);
  Executable alone(f, one);
  Executable threaded(f, two);
  for (const std::int64_t columns : {1, 3, 17, 65}) {
    const std::vector<Tensor> inputs = inputs_of(f, 100'000 / columns, columns);
    const std::vector<Tensor> a = alone.run(inputs);
    const std::vector<Tensor> b = threaded.run(inputs);
    for (std::size_t o = 0; o < a.size(); ++o)
      EXPECT_TRUE(same_bits(a[o], b[o])) << columns << " columns, output " << o;
  }
}

INSTANTIATE_TEST_SUITE_P(Engine, ShortRows, ::testing::ValuesIn(cases()),
                         [](const auto& one) { return one.param.name; });

}  // namespace
}  // namespace segfuse::engine
