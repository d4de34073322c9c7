// Recurrent layers against their formulas, frame by frame.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "compiler/autodiff.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "learn/nn/layers.h"
#include "support/tensors.h"

namespace segfuse {
namespace {

using ir::ValId;
using nn::Recurrence;
using Vector = std::vector<double>;

constexpr std::int64_t kInputs = 3;
constexpr std::int64_t kStates = 2;

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

struct Layer {
  ir::Fusion fusion;
  std::vector<nn::ParameterSpec> parameters;
  std::vector<ValId> values;
  ValId result;

  explicit Layer(Recurrence kind) {
    ir::Builder b(fusion);
    nn::Net net(b, {});
    const ir::Extent rows = fusion.symbol("B");
    const ir::Extent steps = fusion.symbol("T");
    const ValId x = fusion.add_input("x", DType::kF32, {rows, steps, kInputs});
    const ValId inside = fusion.add_input("inside", DType::kBool, {rows, steps, 1});
    result = net.bidirectional("r", x, kind, kStates, inside);
    parameters = net.parameters();
    values = net.values();
    values.push_back(x);
  }
};

struct Given {
  std::vector<Tensor> inputs;
  std::map<std::string, Tensor> of;
};

/// Rows of these lengths, with what is not zero behind them.
Given draw(const Layer& layer, const std::vector<std::int64_t>& lengths, std::int64_t steps) {
  Rng rng(5);
  const auto rows = static_cast<std::int64_t>(lengths.size());
  Given given;
  given.inputs = {testing::uniform(rng, DType::kF32, {rows, steps, kInputs}),
                  Tensor::zeros(DType::kBool, {rows, steps, 1})};
  for (std::int64_t b = 0; b < rows; ++b)
    for (std::int64_t t = 0; t < lengths[static_cast<std::size_t>(b)]; ++t)
      given.inputs[1].set(b * steps + t, 1);
  for (const nn::ParameterSpec& spec : layer.parameters) {
    given.inputs.push_back(testing::uniform(rng, DType::kF32, spec.shape, -1, 1));
    given.of[spec.name] = given.inputs.back();
  }
  return given;
}

/// x W + b of column `o`.
double affine(const Vector& x, const Tensor& weight, std::int64_t o, double bias) {
  const std::int64_t columns = weight.shape()[1];
  for (std::size_t i = 0; i < x.size(); ++i)
    bias += x[i] * weight.at(static_cast<std::int64_t>(i) * columns + o);
  return bias;
}

struct Cell {
  Vector h = Vector(kStates, 0);
  Vector c = Vector(kStates, 0);
};

void lstm(const Given& given, const std::string& name, const Vector& x, Cell& cell) {
  const Tensor& w = given.of.at(name + ".input.weight");
  const Tensor& bias = given.of.at(name + ".input.bias");
  const Tensor& u = given.of.at(name + ".state.weight");
  const Vector before = cell.h;
  for (std::int64_t k = 0; k < kStates; ++k) {
    const auto gate = [&](std::int64_t g) {
      const std::int64_t o = g * kStates + k;
      return affine(x, w, o, bias.at(o)) + affine(before, u, o, 0);
    };
    double& c = cell.c[static_cast<std::size_t>(k)];
    c = sigmoid(gate(1)) * c + sigmoid(gate(0)) * std::tanh(gate(2));
    cell.h[static_cast<std::size_t>(k)] = sigmoid(gate(3)) * std::tanh(c);
  }
}

void gru(const Given& given, const std::string& name, const Vector& x, Cell& cell) {
  const Tensor& w = given.of.at(name + ".input.weight");
  const Tensor& bias = given.of.at(name + ".input.bias");
  const Tensor& u = given.of.at(name + ".state.weight");
  const Tensor& own = given.of.at(name + ".state.bias");
  const Vector before = cell.h;
  for (std::int64_t k = 0; k < kStates; ++k) {
    const auto from_x = [&](std::int64_t g) {
      return affine(x, w, g * kStates + k, bias.at(g * kStates + k));
    };
    const auto from_h = [&](std::int64_t g) { return affine(before, u, g * kStates + k, 0); };
    const double reset = sigmoid(from_x(0) + from_h(0));
    const double update = sigmoid(from_x(1) + from_h(1));
    const double fresh = std::tanh(from_x(2) + reset * (from_h(2) + own.at(k)));
    double& h = cell.h[static_cast<std::size_t>(k)];
    h = (1 - update) * fresh + update * h;
  }
}

void state_space(const Given& given, const std::string& name, const Vector& x, Cell& cell) {
  const Tensor& w = given.of.at(name + ".input.weight");
  for (std::int64_t k = 0; k < kStates; ++k) {
    const double a = std::exp(-std::exp(-given.of.at(name + ".time_scale").at(k)));
    const double u = affine(x, w, k, given.of.at(name + ".input.bias").at(k));
    double& h = cell.h[static_cast<std::size_t>(k)];
    h = a * h + std::sqrt(1 - a * a) * u;
  }
}

Vector expected(Recurrence kind, const Given& given, const std::vector<std::int64_t>& lengths,
                std::int64_t steps) {
  const auto step = kind == Recurrence::kLstm ? lstm : kind == Recurrence::kGru ? gru : state_space;
  Vector result(lengths.size() * static_cast<std::size_t>(steps * 2 * kStates), 0);
  for (std::size_t b = 0; b < lengths.size(); ++b)
    for (const bool backward : {false, true}) {
      Cell cell;
      for (std::int64_t i = 0; i < lengths[b]; ++i) {
        const std::int64_t t = backward ? lengths[b] - 1 - i : i;
        const std::int64_t row = static_cast<std::int64_t>(b) * steps + t;
        Vector x;
        for (std::int64_t c = 0; c < kInputs; ++c)
          x.push_back(given.inputs[0].at(row * kInputs + c));
        step(given, backward ? "r.backward" : "r.forward", x, cell);
        for (std::int64_t k = 0; k < kStates; ++k)
          result[static_cast<std::size_t>((row * 2 + (backward ? 1 : 0)) * kStates + k)] =
              cell.h[static_cast<std::size_t>(k)];
      }
    }
  return result;
}

class Recurrent : public ::testing::TestWithParam<Recurrence> {};

TEST_P(Recurrent, IsItsFormulaInBothDirections) {
  Layer layer(GetParam());
  layer.fusion.add_output(layer.result);
  ir::verify(layer.fusion);
  const std::vector<std::int64_t> lengths{4, 6, 1, 0};
  const Given given = draw(layer, lengths, 6);
  const Vector formula = expected(GetParam(), given, lengths, 6);
  testing::expect_values(ir::interpret(layer.fusion, given.inputs)[0], formula, 1e-9);
  ThreadPool pool(2);
  testing::expect_values(engine::Executable(layer.fusion, pool).run(given.inputs)[0], formula,
                         1e-5);
}

TEST_P(Recurrent, ARowDoesNotDependOnThoseBesideIt) {
  Layer layer(GetParam());
  layer.fusion.add_output(layer.result);
  ThreadPool pool(1);
  engine::Executable run(layer.fusion, pool);
  const std::vector<std::int64_t> lengths{4, 7};
  const Given both = draw(layer, lengths, 7);
  const Tensor together = run.run(both.inputs)[0];
  std::vector<Tensor> alone = both.inputs;
  alone[0] = Tensor(DType::kF32, {1, 4, kInputs});
  for (std::int64_t i = 0; i < alone[0].size(); ++i) alone[0].set(i, both.inputs[0].at(i));
  alone[1] = Tensor::full(DType::kBool, {1, 4, 1}, 1);
  const Tensor by_itself = run.run(alone)[0];
  for (std::int64_t i = 0; i < by_itself.size(); ++i)
    EXPECT_NEAR(by_itself.at(i), together.at(i), 1e-6) << i;
  for (std::int64_t i = by_itself.size(); i < 7 * 2 * kStates; ++i)
    EXPECT_EQ(together.at(i), 0) << i;
}

TEST_P(Recurrent, GradientsAreDifferences) {
  Layer layer(GetParam());
  ir::Fusion& f = layer.fusion;
  ir::Builder b(f);
  const ir::Extents shape = f.canonical(f.val(layer.result).shape);
  const ValId weights =
      b.sin(b.reshape(b.iota(shape[0] * shape[1] * shape[2], DType::kF32), shape));
  const ValId total = b.sum(b.mul(layer.result, weights), {0, 1, 2});
  f.add_output(total);
  for (const ValId gradient : compiler::gradients(f, total, layer.values)) f.add_output(gradient);
  ir::verify(f);
  const Given given = draw(layer, {4, 2}, 5);
  const std::vector<Tensor> found = ir::interpret(f, given.inputs);
  ThreadPool one(1);
  ThreadPool two(2);
  const std::vector<Tensor> compiled = engine::Executable(f, one).run(given.inputs);
  const std::vector<Tensor> again = engine::Executable(f, two).run(given.inputs);
  constexpr double kStep = 1.0 / 1024;  // exact beside inputs of one binade
  for (std::size_t v = 0; v < layer.values.size(); ++v) {
    const std::size_t input = v + 1 < layer.values.size() ? v + 2 : 0;
    EXPECT_TRUE(testing::same_bits(compiled[v + 1], again[v + 1]));
    for (std::int64_t i = 0; i < given.inputs[input].size(); ++i) {
      double change = 0;
      double apart = 0;
      for (const double side : {1.0, -1.0}) {
        std::vector<Tensor> moved = given.inputs;
        moved[input] = moved[input].clone();
        moved[input].set(i, moved[input].at(i) + side * kStep);
        apart += side * moved[input].at(i);
        change += side * ir::interpret(f, moved)[0].at(0);
      }
      EXPECT_NEAR(found[v + 1].at(i), change / apart, 1e-5) << v << ", " << i;
      EXPECT_NEAR(compiled[v + 1].at(i), found[v + 1].at(i), 1e-4) << v << ", " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kinds, Recurrent,
                         ::testing::Values(Recurrence::kLstm, Recurrence::kGru, Recurrence::kSsm),
                         [](const auto& kind) {
                           return kind.param == Recurrence::kLstm  ? "Lstm"
                                  : kind.param == Recurrence::kGru ? "Gru"
                                                                   : "Ssm";
                         });

TEST(RecurrentInit, IsAsDocumented) {
  const Layer layer(Recurrence::kLstm);
  std::map<std::string, nn::ParameterSpec> of;
  for (const nn::ParameterSpec& spec : layer.parameters) of[spec.name] = spec;
  const Tensor bias = nn::initial_value(of.at("r.forward.input.bias"), 1);
  testing::expect_values(bias, {0, 0, 1, 1, 0, 0, 0, 0});
  nn::ParameterSpec wide = of.at("r.backward.state.weight");
  wide.shape = {100, 100};
  const Tensor weight = nn::initial_value(wide, 1);
  const double bound = 1 / std::sqrt(static_cast<double>(kStates));
  double square = 0;
  for (std::int64_t i = 0; i < weight.size(); ++i) {
    EXPECT_LE(std::abs(weight.at(i)), bound);
    square += weight.at(i) * weight.at(i) / static_cast<double>(weight.size());
  }
  EXPECT_NEAR(square, bound * bound / 3, 0.02 * bound * bound);
  const Layer ssm(Recurrence::kSsm);
  for (nn::ParameterSpec spec : ssm.parameters) {
    if (!spec.name.ends_with("time_scale")) continue;
    spec.shape = {1000};
    const Tensor scale = nn::initial_value(spec, 2);
    for (std::int64_t i = 0; i < scale.size(); ++i) {
      EXPECT_GE(scale.at(i), 0);
      EXPECT_LE(scale.at(i), std::log(1000.0) + 1e-6);
    }
  }
}

}  // namespace
}  // namespace segfuse
