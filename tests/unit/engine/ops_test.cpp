// Programs built in C++ (segfuse/ops.h): every operation against the reference, compositions
// against their formulas, gradients, sizes, refusals.

#include "segfuse/ops.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>
#include <set>
#include <utility>

#include "ir/builder.h"
#include "ir/text.h"
#include "segfuse/error.h"
#include "support/structure.h"
#include "support/tensors.h"

namespace segfuse::ops {
namespace {

using segfuse::testing::counting;
using segfuse::testing::expect_values;
using segfuse::testing::near;
using segfuse::testing::row;
using segfuse::testing::tensor;
using segfuse::testing::uniform;
using ::testing::HasSubstr;

/// Runs a program of one output both ways and compares.
Tensor checked(const FusionBuilder& f, const std::vector<Tensor>& inputs, double tolerance = 1e-5) {
  const Program program = f.build();
  const std::vector<Tensor> found = program.run(inputs);
  const std::vector<Tensor> expected = program.run_reference(inputs);
  EXPECT_EQ(found.size(), expected.size());
  for (std::size_t o = 0; o < found.size(); ++o) {
    EXPECT_EQ(found[o].shape(), expected[o].shape());
    for (std::int64_t i = 0; i < found[o].size(); ++i)
      EXPECT_PRED3(near, found[o].at(i), expected[o].at(i), tolerance) << f.text();
  }
  return found[0];
}

Tensor draw(const OperationInfo& op, const Shape& shape, std::uint64_t seed) {
  if (op.types == "logical")
    return tensor(DType::kBool, {2, 2}, {0, 1, static_cast<double>(seed % 2), 1});
  if (op.types == "integer")
    return seed % 2 == 1 ? tensor(DType::kI64, {2, 2}, {7, -7, 0, 12})
                         : tensor(DType::kI64, {2, 2}, {2, 3, 2, 3});
  Rng rng(seed);
  const bool positive = op.domain == "positive";
  Tensor x = uniform(rng, DType::kF32, shape, positive ? 0.2 : 0.3, 2);
  if (op.domain != "positive")
    for (std::int64_t i = 0; i < x.size(); i += 2) x.set(i, -x.at(i));
  return x;
}

TEST(Ops, EveryElementwiseOperationIsTheBuildersAndRuns) {
  std::map<std::string, std::function<Value(const Value&)>> unary;
  std::map<std::string, std::function<Value(const Value&, const Value&)>> binary;
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  unary[#name] = [](const Value& a) { return ops::name(a); };
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  binary[#name] = [](const Value& a, const Value& b) { return ops::name(a, b); };
#include "segfuse/ops.def"
  std::size_t count = 0;
  for (const OperationInfo& op : operations()) {
    if (op.kind != "elementwise" || op.types.empty()) continue;
    SCOPED_TRACE(op.name);
    ++count;
    const DType dtype = op.types == "logical"   ? DType::kBool
                        : op.types == "integer" ? DType::kI64
                                                : DType::kF32;
    FusionBuilder f;
    std::vector<Value> x{f.input("a", dtype, {"N", 2})};
    std::vector<Tensor> inputs{draw(op, {2, 2}, 1)};
    if (op.max_operands == 2) {
      x.push_back(f.input("b", dtype, {1, 2}));
      inputs.push_back(draw(op, {2, 2}, 2));
      inputs[1] = tensor(dtype, {1, 2}, {inputs[1].at(0), inputs[1].at(1)});
    }
    f.output(op.max_operands == 1 ? unary.at(op.name)(x[0]) : binary.at(op.name)(x[0], x[1]));
    f.output(f.apply(op.name, x)[0]);
    const Tensor y = checked(f, inputs);
    const Tensor by_name = f.build().run(inputs)[1];
    EXPECT_TRUE(segfuse::testing::same_bits(y, by_name));
    EXPECT_THAT(f.text(), HasSubstr("= " + op.name + "("));
  }
  EXPECT_EQ(count, unary.size() + binary.size());
}

struct Case {
  std::vector<Shape> inputs;
  std::function<Value(FusionBuilder&, const std::vector<Value>&)> build;
};

/// i64 indices that differ, from a float input that is not used otherwise.
Value indices(FusionBuilder& f, const std::vector<int>& numbers) {
  std::vector<Value> parts;
  for (const int number : numbers) parts.push_back(f.constant(number, DType::kI64));
  return stack(parts, 0);
}

using X = const std::vector<Value>&;

std::map<std::string, Case> reductions() {
  const Axes first{0};
  return {
      {"sum", {{{3, 4}}, [=](FusionBuilder&, X x) { return sum(x[0], first); }}},
      {"prod", {{{3, 4}}, [](FusionBuilder&, X x) { return prod(x[0]); }}},
      {"max", {{{3, 4}}, [](FusionBuilder&, X x) { return max(x[0], Axes{-1}, true); }}},
      {"min", {{{3, 4}}, [](FusionBuilder&, X x) { return min(x[0], Axes{1, 0}); }}},
      {"argmax", {{{3, 4}}, [](FusionBuilder&, X x) { return argmax(x[0], -1); }}},
      {"welford",
       {{{3, 4}},
        [](FusionBuilder&, X x) {
          const Moments m = welford(x[0], Axes{-1}, true);
          return m.mean + m.m2;
        }}},
      {"logsumexp", {{{3, 4}}, [](FusionBuilder&, X x) { return logsumexp(x[0], Axes{0}); }}},
  };
}

std::map<std::string, Case> scans() {
  return {
      {"cumsum", {{{3, 4}}, [](FusionBuilder&, X x) { return cumsum(x[0], -1); }}},
      {"cumprod", {{{3, 4}}, [](FusionBuilder&, X x) { return cumprod(x[0], 0, true); }}},
      {"cummax", {{{3, 4}}, [](FusionBuilder&, X x) { return cummax(x[0], 1); }}},
      {"cummin", {{{3, 4}}, [](FusionBuilder&, X x) { return cummin(x[0], 1, true); }}},
      {"cumlogsumexp", {{{3, 4}}, [](FusionBuilder&, X x) { return cumlogsumexp(x[0], 0); }}},
      {"linear_scan",
       {{{3, 4}, {3, 4}}, [](FusionBuilder&, X x) { return linear_scan(x[0], x[1], 1); }}},
      {"scan",
       {{{4}, {3, 4}, {4}},
        [](FusionBuilder&, X x) {
          FusionBuilder step("step");
          const Value h = step.input("h", DType::kF32, {"M"});
          const Value v = step.input("v", DType::kF32, {"M"});
          const Value next = h * step.input("w", DType::kF32, {"M"}) + v;
          step.output(next);
          step.output(tanh(next));
          const Scanned all = scan(step, {&x[0], 1}, {&x[1], 1}, {&x[2], 1}, 3, true);
          return all.carries[0] + all.stacked[0];
        }}},
      {"sort",
       {{{3, 4}},
        [](FusionBuilder&, X x) {
          const Sorted sorted = sort(x[0], -1, true);
          return sorted.values + cast(sorted.places, DType::kF32);
        }}},
  };
}

std::map<std::string, Case> movements() {
  return {
      {"where", {{{3}, {3}}, [](FusionBuilder&, X x) { return where(x[0] > x[1], x[0], 0); }}},
      {"cast", {{{3}}, [](FusionBuilder&, X x) { return cast(x[0], DType::kI32); }}},
      {"permute", {{{2, 3, 4}}, [](FusionBuilder&, X x) { return permute(x[0], {2, 0, -2}); }}},
      {"broadcast", {{{3, 1}}, [](FusionBuilder&, X x) { return broadcast_to(x[0], {2, 3, 4}); }}},
      {"squeeze", {{{2, 1, 3}}, [](FusionBuilder&, X x) { return squeeze(x[0], {-2}); }}},
      {"reshape", {{{2, 6}}, [](FusionBuilder&, X x) { return reshape(x[0], {3, 4}); }}},
      {"slice", {{{4, 5}}, [](FusionBuilder&, X x) { return slice(x[0], -1, 1, 3); }}},
      {"pad", {{{2, 3}}, [](FusionBuilder&, X x) { return pad(x[0], 0, 1, 2, 7); }}},
      {"concat",
       {{{2, 3}, {2, 1}}, [](FusionBuilder&, X x) { return concat({x[0], x[1], x[0]}, -1); }}},
      {"take",
       {{{2, 3}}, [](FusionBuilder& f, X x) { return take(x[0], indices(f, {2, 0, 2, 1}), -1); }}},
      {"gather",
       {{{3, 2}},
        [](FusionBuilder& f, X x) {
          return gather(x[0], reshape(indices(f, {2, 0, 1, 1}), {2, 2}), 0);
        }}},
      {"scatter_add",
       {{{2, 2, 2}},
        [](FusionBuilder& f, X x) {
          return scatter_add(x[0], reshape(indices(f, {4, 0, 4, 2}), {2, 2}), -1, 5);
        }}},
      {"unfold", {{{2, 9}}, [](FusionBuilder&, X x) { return unfold(x[0], -1, 3, 2, 2); }}},
      {"fold", {{{2, 3, 3}}, [](FusionBuilder&, X x) { return fold(x[0], -1, 9, 2, 2); }}},
      {"constant", {{{2}}, [](FusionBuilder& f, X x) { return x[0] * f.constant(2.5); }}},
      {"iota", {{{4}}, [](FusionBuilder& f, X) { return f.iota(4, DType::kF32); }}},
      {"extent", {{{4}}, [](FusionBuilder& f, X x) { return x[0] * f.size("N", DType::kF32); }}},
      {"random_uniform",
       {{{2}}, [](FusionBuilder& f, X) { return random_uniform(indices(f, {3, 4}), {5}); }}},
      {"matmul",
       {{{4, 3}, {2, 4}}, [](FusionBuilder&, X x) { return matmul(x[0], x[1], true, true); }}},
  };
}

/// As people write it: it is found when the program is built, or differentiated.
Value attention_of(X x) {
  const Value scores = matmul(x[0], x[1], false, true) * 0.5;
  const Value rows = unsqueeze(x[0].fusion().iota(3), 1);
  const Value seen = x[0].fusion().iota(4) <= rows;
  return matmul(softmax(where(seen, scores, -std::numeric_limits<double>::infinity())), x[2]);
}

std::map<std::string, Case> attentions() {
  const std::vector<Shape> shapes{{2, 3, 4}, {2, 4, 4}, {2, 4, 5}};
  return {{"attention",
           {shapes,
            [](FusionBuilder& f, X x) {
              const Attribute how[] = {0.5, -1e9, Sizes{2, 0}};
              return f.apply("attention", x, how)[0];
            }}},
          {"attention_grad",
           {shapes, [](FusionBuilder&, X x) { return grad(sum(square(attention_of(x))), x[1]); }}}};
}

TEST(Ops, AttentionIsFoundWhenAProgramIsBuilt) {
  FusionBuilder f;
  std::vector<Value> x;
  for (const Sizes& shape : {Sizes{"B", 3, 4}, Sizes{"B", 4, 4}, Sizes{"B", 4, 5}})
    x.push_back(f.input("x" + std::to_string(x.size()), DType::kF32, shape));
  f.output(attention_of(x));
  EXPECT_THAT(f.text(), HasSubstr("exp("));
  EXPECT_THAT(f.build().emit("segments"), HasSubstr("attention"));
  EXPECT_THAT(f.build().emit("ir"),
              HasSubstr("attention(%0, %1, %2) {scale=0.5, fill=-inf, ahead=["));
}

TEST(Ops, EveryOtherOperationRuns) {
  std::map<std::string, Case> cases = reductions();
  cases.merge(movements());
  cases.merge(scans());
  cases.merge(attentions());
  for (const OperationInfo& op : operations()) {
    if (op.kind == "elementwise" && !op.types.empty()) continue;
    if (op.name.starts_with("semicrf_")) continue;  // below
    SCOPED_TRACE(op.name);
    ASSERT_TRUE(cases.contains(op.name)) << "no case for this operation";
    const Case& c = cases.at(op.name);
    FusionBuilder f;
    std::vector<Value> x;
    std::vector<Tensor> inputs;
    Rng rng(7);
    for (const Shape& shape : c.inputs) {
      Sizes sizes(shape.begin(), shape.end());
      if (op.name == "extent") sizes[0] = "N";
      x.push_back(f.input("x" + std::to_string(x.size()), DType::kF32, sizes));
      inputs.push_back(uniform(rng, DType::kF32, shape));
    }
    f.output(c.build(f, x));
    EXPECT_THAT(f.text(), HasSubstr("= " + op.name));
    checked(f, inputs);
  }
}

TEST(Ops, LossesOfSegmentsByName) {
  FusionBuilder f;
  const Value emission = f.input("emission", DType::kF32, {"B", "T", 2});
  const Value transition = f.input("transition", DType::kF32, {1, 2, 2});
  const Value duration = f.input("duration", DType::kF32, {3, 2});
  const Value ends = f.input("ends", DType::kF32, {2});
  const Value lengths = f.input("lengths", DType::kI64, {"B"});
  const Value labels = f.input("labels", DType::kI32, {"B", "T"});
  const Value starts = f.input("starts", DType::kBool, {"B", "T"});
  const Value operands[] = {emission, transition, duration, ends, ends, lengths, labels, starts};
  const Value loss = f.apply("semicrf_loss", operands)[0];
  f.output(loss);
  f.output(grad(sum(loss), emission));
  Rng rng(1);
  const std::vector<Tensor> inputs{uniform(rng, DType::kF32, {1, 4, 2}),
                                   uniform(rng, DType::kF32, {1, 2, 2}),
                                   uniform(rng, DType::kF32, {3, 2}),
                                   uniform(rng, DType::kF32, {2}),
                                   tensor(DType::kI64, {1}, {4}),
                                   tensor(DType::kI32, {1, 4}, {0, 0, 1, 1}),
                                   tensor(DType::kBool, {1, 4}, {1, 0, 1, 0})};
  const Tensor value = checked(f, inputs);
  EXPECT_GT(value.at(0), 0);
}

// --- compositions
// -----------------------------------------------------------------------

/// The composition of (2, 3, 4) values against a formula over the elements of a group.
void expect_composition(const std::function<Value(const Value&)>& build,
                        const std::function<std::vector<double>(const Tensor&)>& formula) {
  FusionBuilder f;
  f.output(build(f.input("x", DType::kF64, {"B", "C", "T"})));
  Rng rng(3);
  const Tensor x = uniform(rng, DType::kF64, {2, 3, 4});
  expect_values(f.build().run(std::vector{x})[0], formula(x), 1e-9);
}

/// Each element standardised over those with which `group` shares a number.
std::vector<double> standardised(const Tensor& x,
                                 const std::function<std::int64_t(std::int64_t)>& group) {
  std::map<std::int64_t, std::vector<double>> members;
  for (std::int64_t i = 0; i < x.size(); ++i) members[group(i)].push_back(x.at(i));
  std::vector<double> result;
  for (std::int64_t i = 0; i < x.size(); ++i) {
    const std::vector<double>& all = members[group(i)];
    double mean = 0;
    double square = 0;
    for (const double v : all) mean += v / static_cast<double>(all.size());
    for (const double v : all) square += (v - mean) * (v - mean) / static_cast<double>(all.size());
    result.push_back((x.at(i) - mean) / std::sqrt(square + 1e-5));
  }
  return result;
}

TEST(Ops, NormsAreTheirFormulas) {
  expect_composition([](const Value& x) { return layer_norm(x); },
                     [](const Tensor& x) { return standardised(x, [](auto i) { return i / 4; }); });
  expect_composition([](const Value& x) { return instance_norm(x); },
                     [](const Tensor& x) { return standardised(x, [](auto i) { return i / 4; }); });
  expect_composition(
      [](const Value& x) {
        FusionBuilder f = x.fusion();
        const Sizes channels{x.size(1)};
        return batch_norm(x, f.full(1, channels, DType::kF64), f.full(0, channels, DType::kF64))
            .value;
      },
      [](const Tensor& x) { return standardised(x, [](auto i) { return i / 4 % 3; }); });
  expect_composition(
      [](const Value& x) { return rms_norm(x, x.fusion().constant(2, DType::kF64)); },
      [](const Tensor& x) {
        std::vector<double> y;
        for (std::int64_t i = 0; i < x.size(); ++i) {
          double square = 1e-6;
          for (std::int64_t j = i / 4 * 4; j < i / 4 * 4 + 4; ++j) square += x.at(j) * x.at(j) / 4;
          y.push_back(2 * x.at(i) / std::sqrt(square));
        }
        return y;
      });
}

TEST(Ops, BatchNormGivesMeanAndVarianceOfEachChannel) {
  FusionBuilder f;
  const Value x = f.input("x", DType::kF64, {"B", "C", "T"});
  const Sizes channels{x.size(1)};
  const BatchNorm norm =
      batch_norm(x, f.full(3, channels, DType::kF64), f.full(1, channels, DType::kF64));
  f.output(norm.mean);
  f.output(norm.variance);
  Rng rng(4);
  const Tensor values = uniform(rng, DType::kF64, {2, 3, 4});
  std::vector<double> mean(3);
  std::vector<double> variance(3);
  for (std::int64_t i = 0; i < values.size(); ++i)
    mean[static_cast<std::size_t>(i / 4 % 3)] += values.at(i) / 8;
  for (std::int64_t i = 0; i < values.size(); ++i) {
    const auto c = static_cast<std::size_t>(i / 4 % 3);
    variance[c] += (values.at(i) - mean[c]) * (values.at(i) - mean[c]) / 8;
  }
  const std::vector<Tensor> found = f.build().run(std::vector{values});
  expect_values(found[0], mean, 1e-12);
  expect_values(found[1], variance, 1e-12);
}

/// A bf16 result is the exact one rounded, or its neighbour where f32 was off by a little.
TEST(Ops, CompositionsOf16BitValuesAreRoundedOnce) {
  using Build = std::function<Value(const Value& x, const Value& row, const Value& channel)>;
  const std::vector<std::pair<const char*, Build>> all = {
      {"softmax", [](auto& x, auto&, auto&) { return softmax(x); }},
      {"log_softmax", [](auto& x, auto&, auto&) { return log_softmax(x); }},
      {"gelu", [](auto& x, auto&, auto&) { return gelu(x); }},
      {"gelu_tanh", [](auto& x, auto&, auto&) { return gelu_tanh(x); }},
      {"silu", [](auto& x, auto&, auto&) { return silu(x); }},
      {"layer_norm", [](auto& x, auto& row, auto&) { return layer_norm(x, row, row); }},
      {"rms_norm", [](auto& x, auto& row, auto&) { return rms_norm(x, row); }},
      {"instance_norm", [](auto& x, auto&, auto& c) { return instance_norm(x, c, c); }},
      {"batch_norm", [](auto& x, auto&, auto& c) { return batch_norm(x, c, c).value; }},
  };
  Rng rng(5);
  const std::vector<Tensor> wide = {uniform(rng, DType::kBF16, {4, 3, 65}).to(DType::kF64),
                                    uniform(rng, DType::kBF16, {65}).to(DType::kF64),
                                    uniform(rng, DType::kBF16, {3}).to(DType::kF64)};
  for (const auto& [name, build] : all) {
    const auto run = [&, &make = build](DType dtype) {
      FusionBuilder f;
      const Value x = f.input("x", dtype, {"B", "C", "T"});
      const Value row = f.input("row", dtype, {"T"});
      const Value channel = f.input("channel", dtype, {"C"});
      f.output(make(x, row, channel));
      std::vector<Tensor> inputs;
      for (const Tensor& tensor : wide) inputs.push_back(tensor.to(dtype));
      return f.build().run(inputs)[0];
    };
    const Tensor exact = run(DType::kF64);
    const Tensor found = run(DType::kBF16);
    ASSERT_EQ(found.dtype(), DType::kBF16) << name;
    for (std::int64_t i = 0; i < exact.size(); ++i)
      ASSERT_NEAR(found.at(i), exact.at(i), 0x1.02p-8 * std::abs(exact.at(i)) + 2e-6)
          << name << " at " << i;
  }
}

TEST(Ops, ActivationsAreTheirFormulas) {
  auto each = [](double (*function)(double)) {
    return [=](const Tensor& x) {
      std::vector<double> y;
      for (const double v : segfuse::testing::values(x)) y.push_back(function(v));
      return y;
    };
  };
  expect_composition([](const Value& x) { return gelu(x); },
                     each([](double a) { return a * (1 + std::erf(a / std::sqrt(2.0))) / 2; }));
  expect_composition([](const Value& x) { return gelu_tanh(x); }, each([](double a) {
                       const double inner = std::sqrt(2 / M_PI) * (a + 0.044715 * a * a * a);
                       return a * (1 + std::tanh(inner)) / 2;
                     }));
  expect_composition([](const Value& x) { return silu(x); },
                     each([](double a) { return a / (1 + std::exp(-a)); }));
  expect_composition([](const Value& x) { return clamp(x, -1, 0.5); },
                     each([](double a) { return std::min(std::max(a, -1.0), 0.5); }));
  expect_composition(
      [](const Value& x) {
        return log(softmax(x)) - log_softmax(x) + sum(softmax(x), Axes{-1}, true);
      },
      each([](double) { return 1.0; }));
  expect_composition(
      [](const Value& x) { return var(x, kAllAxes, true, 1) * 23.0 / 24.0 - var(x) + x; },
      each([](double a) { return a; }));
}

TEST(Ops, DropoutKeepsTheMean) {
  FusionBuilder f;
  const Value seed = f.input("seed", DType::kI64, {2});
  f.output(dropout(f.full(1, {10000}), seed, 0.25));
  const Tensor y = f.build().run(std::vector{tensor(DType::kI64, {2}, {1, 2})})[0];
  double mean = 0;
  for (const double v : segfuse::testing::values(y)) {
    EXPECT_TRUE(v == 0 || std::abs(v - 4.0 / 3) < 1e-6);
    mean += v / 10000;
  }
  EXPECT_NEAR(mean, 1, 0.03);
}

// --- gradients, sizes, programs
// ------------------------------------------------------------------------

TEST(Ops, GradientsAndTheirGradients) {
  FusionBuilder f;
  const Value x = f.input("x", DType::kF64, {"N"});
  const Value first = grad(sum(x * x * x), x);
  f.output(first);
  f.output(grad(sum(first), x));
  const Value seed[] = {x};
  const Value outputs[] = {exp(x)};
  f.output(vjp(outputs, seed, seed)[0]);
  const auto y = f.build().run(std::vector{row({1, -2})});
  expect_values(y[0], {3, 12});
  expect_values(y[1], {6, -12});
  expect_values(y[2], {std::exp(1.0), -2 * std::exp(-2.0)});
}

TEST(Ops, SizesAreCalculatedWith) {
  const Size b("B");
  const Size t("T");
  EXPECT_EQ((2 * b * t + 3 - t).text(), "2*B*T - T + 3");
  EXPECT_EQ(floordiv(b * 6, 3).text(), "2*B");
  EXPECT_EQ(floordiv(b + 1, 3).evaluate([](std::string_view) { return -6; }), -2);
  EXPECT_EQ((b * t - 4).evaluate([](std::string_view n) { return n == "B" ? 2 : 5; }), 6);
  EXPECT_EQ(Size(3).number(), 3);
  EXPECT_EQ((b - b + 2).number(), 2);
  EXPECT_FALSE(b.number());
  FusionBuilder f;
  const Value x = f.input("x", DType::kF32, {b, t, 64});
  EXPECT_EQ(f.divide(b * t * 64, b * 64)->text(), "T");
  EXPECT_FALSE(f.divide(b * t, 2));
  EXPECT_EQ(f.divide(b * t + 2 * b, b)->text(), "T + 2");
  EXPECT_EQ(reshape(x, {b * t, 64}).text(), "f32[B*T, 64]");
  EXPECT_EQ(unfold(x, 1, 3, 2).size(1).evaluate([](auto) { return 9; }), 4);
  f.require(b, t);
  EXPECT_TRUE(f.equal(b * b, t * b));
  EXPECT_EQ(x.size(0).text(), x.size(1).text());
}

TEST(Ops, ProgramsTakeAnySizesAndWriteAliases) {
  FusionBuilder f("step");
  const Value w = f.input("w", DType::kF32, {"N"});
  const Value g = f.input("g", DType::kF32, {"N"});
  const Value next = w - 0.5 * g;
  f.output(next, "next");
  f.alias(next, w);
  const Program program = f.build();
  EXPECT_EQ(program.name(), "step");
  EXPECT_EQ(program.outputs()[0].name, "next");
  for (const std::int64_t n : {3, 5}) {
    const std::vector<Tensor> inputs{Tensor::full(DType::kF32, {n}, 2),
                                     Tensor::full(DType::kF32, {n}, 1)};
    (void)program.run(inputs);
    EXPECT_EQ(inputs[0].at(n - 1), 1.5);
  }
  f.output(g, "later");
  EXPECT_EQ(program.outputs().size(), 1U);
}

template <class Function>
std::string refusal(Function function) {
  try {
    function();
  } catch (const UsageError& error) {
    return error.what();
  }
  return "nothing was refused";
}

TEST(Ops, WholeNumbersBeyondDoublesAreExact) {
  for (const std::int64_t number :
       {(std::int64_t{1} << 53) + 1, -(std::int64_t{1} << 53) - 1, std::int64_t{1} << 62,
        std::numeric_limits<std::int64_t>::max(), std::numeric_limits<std::int64_t>::min() + 1,
        std::numeric_limits<std::int64_t>::min(), std::int64_t{-7}}) {
    FusionBuilder f;
    const Value x = f.input("x", DType::kI64, {1});
    f.output(x + number);
    for (const char* backend : {"compiled", "loops", "reference"}) {
      const std::vector<Tensor> outputs =
          f.build().run(std::vector{Tensor::zeros(DType::kI64, {1})}, {.backend = backend});
      EXPECT_EQ(outputs[0].span<std::int64_t>()[0], number) << backend;
    }
  }
  FusionBuilder f;
  const Value x = f.input("x", DType::kI64, {1});
  EXPECT_THAT(refusal([&] { (void)(x + 0xFFFFFFFFFFFFFFFFU); }), HasSubstr("does not fit i64"));
}

TEST(Ops, ExtremesOfNothingAreRefusedWhereSizesAreNumbers) {
  FusionBuilder f;
  const Value x = f.input("x", DType::kF32, {0, 3});
  EXPECT_THAT(refusal([&] { (void)max(x); }),
              HasSubstr("max of f32[0, 3]: axis 0 has no elements, expected at least one"));
  EXPECT_THAT(refusal([&] { (void)min(x, Axes{0}); }), HasSubstr("axis 0 has no elements"));
  f.output(max(x, Axes{1}));
  f.output(softmax(x, 0));
  const std::vector<Tensor> outputs = f.build().run(std::vector{Tensor(DType::kF32, {0, 3})});
  EXPECT_EQ(outputs[0].shape(), Shape({0}));
  EXPECT_EQ(outputs[1].shape(), Shape({0, 3}));
}

TEST(Ops, WhatWasMovedFromSaysSo) {
  FusionBuilder f;
  Value x = f.input("x", DType::kF32, {"N"});
  const Value y = std::move(x);
  // NOLINTBEGIN(bugprone-use-after-move)
  EXPECT_THAT(refusal([&] { (void)(x + y); }), HasSubstr("a Value was used after it was moved"));
  EXPECT_THAT(refusal([&] { (void)exp(x); }), HasSubstr("a Value was used after it was moved"));
  EXPECT_THAT(refusal([&] { f.output(x); }), HasSubstr("a Value was used after it was moved"));
  EXPECT_THAT(refusal([&] { (void)x.text(); }), HasSubstr("a Value was used after it was moved"));
  Size size = "N";
  const Size other = std::move(size);
  EXPECT_THAT(refusal([&] { (void)(size + other); }), HasSubstr("a Size was used after"));
  f.output(y);
  FusionBuilder g = std::move(f);
  EXPECT_THAT(refusal([&] { (void)f.build(); }), HasSubstr("a FusionBuilder was used after"));
  Program p = g.build();
  Program q = std::move(p);
  const std::vector inputs{row({1, 2}, DType::kF32)};
  EXPECT_THAT(refusal([&] { (void)p.run(inputs); }), HasSubstr("a Program was used after"));
  EXPECT_THAT(refusal([&] { (void)p.name(); }), HasSubstr("a Program was used after"));
  std::vector given{row({1, 2}, DType::kF32)};
  const Tensor taken = std::move(given[0]);
  EXPECT_THROW((void)q.run(given), UsageError);
  // NOLINTEND(bugprone-use-after-move)
  p = std::move(q);
  expect_values(p.run(inputs)[0], {1, 2});
}

TEST(Ops, RefusalsNameOperationFoundAndExpected) {
  FusionBuilder f("one");
  FusionBuilder g("two");
  const Value x = f.input("x", DType::kF32, {3});
  const Value y = f.input("y", DType::kF32, {4});
  const Value n = f.input("n", DType::kI32, {3});
  const Value z = g.input("z", DType::kF32, {3});
  EXPECT_THAT(refusal([&] { (void)(x + y); }), HasSubstr("add of f32[3], f32[4]: "));
  EXPECT_THAT(refusal([&] { (void)(x + n); }),
              HasSubstr("add: operands must have one element type; found f32[3] and i32[3]"));
  EXPECT_THAT(refusal([&] { (void)(n + 0.5); }), HasSubstr("0.5 does not fit i32"));
  EXPECT_THAT(refusal([&] { (void)(x + z); }),
              HasSubstr("add: found values of the Fusions 'one' and 'two', expected one Fusion"));
  EXPECT_THAT(refusal([&] { (void)exp(Value(1)); }), HasSubstr("exp: found plain numbers only"));
  EXPECT_THAT(refusal([&] { f.output(z); }),
              HasSubstr("output: found a value of the Fusion 'two', expected one of 'one'"));
  EXPECT_THAT(refusal([&] { (void)sum(x, Axes{1}); }),
              HasSubstr("sum of f32[3]: axis 1 does not exist"));
  EXPECT_THAT(refusal([&] { (void)grad(x, x); }), HasSubstr("expected a scalar"));
  EXPECT_THAT(refusal([&] { (void)instance_norm(x); }), HasSubstr("(B, C, ...)"));
  EXPECT_THAT(refusal([&] { (void)f.input("x", DType::kF32, {}); }), HasSubstr("'x' already"));
  EXPECT_THAT(refusal([&] { (void)f.build(); }), HasSubstr("'one' has no output"));
  EXPECT_THAT(refusal([&] { (void)Size("2B"); }), HasSubstr("'2B' is not a name of a size"));
  EXPECT_THAT(refusal([&] { (void)f.apply("expp", {}); }), HasSubstr("no operation 'expp'"));
  EXPECT_THAT(refusal([&] { (void)x.size(1); }), HasSubstr("found axis 1 for f32[3]"));
  EXPECT_THAT(refusal([&] { f.require(3, 4); }), HasSubstr("3 and 4 can never be equal"));
  f.output(x + 1);  // it goes on
  expect_values(
      f.build().run(std::vector{row({1, 2, 3}, DType::kF32), row({0, 0, 0, 0}, DType::kF32),
                                tensor(DType::kI32, {3}, {0, 0, 0})})[0],
      {2, 3, 4});
}

}  // namespace
}  // namespace segfuse::ops
