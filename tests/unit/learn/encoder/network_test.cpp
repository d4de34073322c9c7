// Layers, optimiser and models as Fusions.
#include <gtest/gtest.h>

#include <cmath>
#include <map>

#include "base/rng.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "learn/model/segmenter.h"
#include "learn/nn/layers.h"
#include "learn/optim/adamw.h"
#include "learn/train/loop/bound_inputs.h"
#include "segfuse/error.h"

namespace segfuse {
namespace {

using ir::ValId;

Tensor random(DType dtype, const Shape& shape, std::uint64_t seed) {
  Tensor tensor(dtype, shape);
  Rng rng(seed);
  for (std::int64_t i = 0; i < tensor.size(); ++i) tensor.set(i, rng.normal());
  return tensor;
}

TEST(Layers, DilatedConvolutionIsTheSumOverTaps) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  nn::Net net(b, {});
  const ValId x = fusion.add_input("x", DType::kF32, {2, fusion.symbol("T"), 3});
  fusion.add_output(net.conv1d("conv", x, 4, 3, 2));
  const Tensor input = random(DType::kF32, {2, 7, 3}, 1);
  const Tensor weight = random(DType::kF32, {9, 4}, 2);
  const Tensor bias = random(DType::kF32, {4}, 3);
  const Tensor y = ir::interpret(fusion, std::vector{input, weight, bias})[0];
  ASSERT_EQ(y.shape(), (Shape{2, 7, 4}));
  for (int n = 0; n < 2; ++n)
    for (int t = 0; t < 7; ++t)
      for (int o = 0; o < 4; ++o) {
        double sum = bias.at(o);
        for (int tap = 0; tap < 3; ++tap) {
          const int from = t + 2 * (tap - 1);
          if (from < 0 || from >= 7) continue;
          for (int c = 0; c < 3; ++c)
            sum += input.at((n * 7 + from) * 3 + c) * weight.at((tap * 3 + c) * 4 + o);
        }
        EXPECT_NEAR(y.at((n * 7 + t) * 4 + o), sum, 1e-12);
      }
}

TEST(Layers, AttentionLooksAtNoPadding) {
  ir::Fusion fusion;
  ir::Builder b(fusion);
  nn::Net net(b, {});
  const ValId x = fusion.add_input("x", DType::kF32, {1, 5, 4});
  const ValId bias = fusion.add_input("bias", DType::kF32, {1, 1, 1, 5});
  fusion.add_output(net.self_attention("a", x, 2, bias));
  std::vector<Tensor> inputs{random(DType::kF32, {1, 5, 4}, 1),
                             Tensor::zeros(DType::kF32, {1, 1, 1, 5})};
  for (int t = 3; t < 5; ++t) inputs[1].set(t, -1e9);
  for (const auto& spec : net.parameters())
    inputs.push_back(random(DType::kF32, spec.shape, inputs.size()));
  const Tensor before = ir::interpret(fusion, inputs)[0];
  for (int i = 12; i < 20; ++i) inputs[0].set(i, 100);  // frames 3 and 4
  const Tensor after = ir::interpret(fusion, inputs)[0];
  for (int i = 0; i < 12; ++i) EXPECT_NEAR(before.at(i), after.at(i), 1e-9);
  double moved = 0;
  for (int i = 12; i < 20; ++i) moved += std::abs(before.at(i) - after.at(i));
  EXPECT_GT(moved, 0.1);
}

TEST(Layers, AttentionIsTheFormula) {
  constexpr int kTime = 3, kWidth = 6, kHeads = 2, kDepth = 3;
  ir::Fusion fusion;
  ir::Builder b(fusion);
  nn::Net net(b, {});
  const ValId x = fusion.add_input("x", DType::kF32, {1, kTime, kWidth});
  const ValId bias = fusion.add_input("bias", DType::kF32, {1, 1, 1, kTime});
  fusion.add_output(net.self_attention("a", x, kHeads, bias));
  std::vector<Tensor> inputs{random(DType::kF32, {1, kTime, kWidth}, 1),
                             random(DType::kF32, {1, 1, 1, kTime}, 2)};
  std::map<std::string, Tensor> of;
  for (const auto& spec : net.parameters()) {
    inputs.push_back(random(DType::kF32, spec.shape, inputs.size()));
    of[spec.name] = inputs.back();
  }
  using Rows = std::vector<std::vector<double>>;
  const auto linear = [&](const std::string& name, const Rows& rows) {
    Rows out(kTime, std::vector<double>(kWidth));
    for (int t = 0; t < kTime; ++t)
      for (int o = 0; o < kWidth; ++o) {
        out[t][o] = of.at("a." + name + ".bias").at(o);
        for (int i = 0; i < kWidth; ++i)
          out[t][o] += rows[t][i] * of.at("a." + name + ".weight").at(i * kWidth + o);
      }
    return out;
  };
  Rows given(kTime, std::vector<double>(kWidth));
  for (int t = 0; t < kTime; ++t)
    for (int i = 0; i < kWidth; ++i) given[t][i] = inputs[0].at(t * kWidth + i);
  const Rows query = linear("query", given), key = linear("key", given);
  const Rows value = linear("value", given);
  Rows mixed(kTime, std::vector<double>(kWidth, 0));
  for (int h = 0; h < kHeads; ++h)
    for (int t = 0; t < kTime; ++t) {
      std::vector<double> weight(kTime);
      double sum = 0;
      for (int u = 0; u < kTime; ++u) {
        double product = 0;
        for (int d = 0; d < kDepth; ++d)
          product += query[t][h * kDepth + d] * key[u][h * kDepth + d];
        weight[u] = std::exp(product / std::sqrt(double{kDepth}) + inputs[1].at(u));
        sum += weight[u];
      }
      for (int u = 0; u < kTime; ++u)
        for (int d = 0; d < kDepth; ++d)
          mixed[t][h * kDepth + d] += weight[u] / sum * value[u][h * kDepth + d];
    }
  const Rows expected = linear("out", mixed);
  const Tensor y = ir::interpret(fusion, inputs)[0];
  for (int t = 0; t < kTime; ++t)
    for (int o = 0; o < kWidth; ++o) EXPECT_NEAR(y.at(t * kWidth + o), expected[t][o], 1e-9);
}

TEST(Layers, InitialValuesDependOnNameAndSeedAlone) {
  const nn::ParameterSpec spec{"a.weight", {100, 50}, {nn::Init::Kind::kNormal, 0.1}};
  const Tensor first = nn::initial_value(spec, 1);
  nn::ParameterSpec other = spec;
  other.name = "b.weight";
  EXPECT_EQ(first.at(7), nn::initial_value(spec, 1).at(7));
  EXPECT_NE(first.at(7), nn::initial_value(spec, 2).at(7));
  EXPECT_NE(first.at(7), nn::initial_value(other, 1).at(7));
  double square = 0;
  for (std::int64_t i = 0; i < first.size(); ++i) square += first.at(i) * first.at(i);
  EXPECT_NEAR(std::sqrt(square / 5000), 0.1, 0.005);
}

TEST(AdamW, ThreeStepsMatchTheFormula) {
  optim::AdamWConfig config;
  config.average = 0.5;
  const std::vector<nn::ParameterSpec> specs{{"w", {2}, {}, true}, {"b", {1}, {}, false}};
  ThreadPool pool(1);
  engine::Executable update(optim::adamw_update(specs, config), pool);
  learn::BoundInputs inputs(update.fusion());
  std::map<std::string, Tensor> state;
  std::vector<double> p{0.5, -1.5, 2}, m(3, 0), v(3, 0), mean{0.5, -1.5, 2};
  for (const auto& spec : specs) {
    const std::size_t at = spec.name == "w" ? 0 : 2;
    for (const std::string prefix : {"", "m.", "v.", "mean."}) {
      Tensor& tensor = state[prefix + spec.name] = Tensor::zeros(DType::kF32, spec.shape);
      for (std::int64_t i = 0; i < tensor.size() && (prefix.empty() || prefix == "mean."); ++i)
        tensor.set(i, p[at + static_cast<std::size_t>(i)]);
      inputs.set(prefix + spec.name, tensor);
    }
  }
  auto scalar = [](double x) { return Tensor::full(DType::kF32, {}, x); };
  for (int step = 1; step <= 3; ++step) {
    const std::vector<double> g{0.1 * step, -0.2, 0.3};
    inputs.set("gradient.w", Tensor::from(std::vector<float>{float(g[0]), float(g[1])}, {2}));
    inputs.set("gradient.b", Tensor::from(std::vector<float>{float(g[2])}, {1}));
    const double rate = 0.01 * step;
    inputs.set("rate", scalar(rate));
    inputs.set("clip", scalar(0.5));
    inputs.set("correction1", scalar(1 / (1 - std::pow(config.beta1, step))));
    inputs.set("correction2", scalar(1 / (1 - std::pow(config.beta2, step))));
    (void)update.run(inputs.tensors());
    for (std::size_t i = 0; i < 3; ++i) {
      const double gi = 0.5 * g[i];
      m[i] = config.beta1 * m[i] + (1 - config.beta1) * gi;
      v[i] = config.beta2 * v[i] + (1 - config.beta2) * gi * gi;
      const double unbiased = std::sqrt(v[i] / (1 - std::pow(config.beta2, step))) + config.epsilon;
      const double decay = i < 2 ? config.weight_decay * p[i] : 0;
      p[i] -= rate * (m[i] / (1 - std::pow(config.beta1, step)) / unbiased + decay);
      mean[i] = 0.5 * mean[i] + 0.5 * p[i];
    }
    for (std::size_t i = 0; i < 3; ++i) {
      const std::string name = i < 2 ? "w" : "b";
      const auto at = static_cast<std::int64_t>(i % 2);
      EXPECT_NEAR(state[name].at(at), p[i], 1e-5) << "step " << step << " element " << i;
      EXPECT_NEAR(state["mean." + name].at(at), mean[i], 1e-5);
    }
  }
}

TEST(Schedule, WarmsUpThenFollowsACosine) {
  const optim::ScheduleConfig config{2, 10, 110, 0.1};
  EXPECT_DOUBLE_EQ(optim::learning_rate(config, 0), 0.2);
  EXPECT_DOUBLE_EQ(optim::learning_rate(config, 9), 2);
  EXPECT_DOUBLE_EQ(optim::learning_rate(config, 10), 2);
  EXPECT_NEAR(optim::learning_rate(config, 60), 2 * (0.1 + 0.9 / 2), 1e-12);
  EXPECT_NEAR(optim::learning_rate(config, 1000), 0.2, 1e-12);
  for (int step = 11; step < 110; ++step)
    EXPECT_LT(optim::learning_rate(config, step), optim::learning_rate(config, step - 1));
}

learn::ModelConfig small_model(learn::HeadKind head) {
  learn::ModelConfig m;
  m.width = 6;
  m.kernel = 3;
  m.dilations = {1, 2};
  m.recurrence = head == learn::HeadKind::kSemiMarkov    ? nn::Recurrence::kLstm
                 : head == learn::HeadKind::kLinearChain ? nn::Recurrence::kGru
                                                         : nn::Recurrence::kSsm;
  m.recurrent_blocks = 1;
  m.recurrent_states = 5;
  m.attention_blocks = 1;
  m.attention_heads = 2;
  m.subsample = 2;
  m.boundary_scores = true;
  m.head = head;
  m.features = 3;
  m.classes = 4;
  m.max_duration = 5;
  return m;
}

TEST(Segmenter, ProgramsVerifyAndShareTheirParameters) {
  for (const auto head :
       {learn::HeadKind::kSemiMarkov, learn::HeadKind::kLinearChain, learn::HeadKind::kSoftmax}) {
    const learn::Segmenter segmenter(small_model(head));
    const ir::Fusion training = segmenter.training();
    const ir::Fusion inference = segmenter.inference();
    ir::verify(training);
    ir::verify(inference);
    EXPECT_EQ(training.outputs().size(), 1 + segmenter.parameters().size());
    const learn::BoundInputs inputs(training);
    for (const auto& spec : segmenter.parameters()) EXPECT_TRUE(inputs.has(spec.name)) << spec.name;
  }
}

class SegmenterOf : public ::testing::TestWithParam<learn::HeadKind> {};
INSTANTIATE_TEST_SUITE_P(Heads, SegmenterOf,
                         ::testing::Values(learn::HeadKind::kSemiMarkov,
                                           learn::HeadKind::kLinearChain,
                                           learn::HeadKind::kSoftmax));

TEST_P(SegmenterOf, EmissionsOfASequenceDoNotDependOnItsPadding) {
  const learn::Segmenter segmenter(small_model(GetParam()));
  ThreadPool pool(2);
  engine::Executable forward(segmenter.inference(), pool);
  learn::BoundInputs inputs(forward.fusion());
  for (const auto& spec : segmenter.parameters())
    if (inputs.has(spec.name)) inputs.set(spec.name, nn::initial_value(spec, 3));
  const Tensor alone = random(DType::kF32, {1, 6, 3}, 1);
  Tensor padded = Tensor::zeros(DType::kF32, {2, 12, 3});
  for (std::int64_t i = 0; i < alone.size(); ++i) padded.set(i, alone.at(i));
  for (std::int64_t i = 36; i < 72; ++i) padded.set(i, 0.01 * static_cast<double>(i));
  inputs.set("features", alone);
  inputs.set("lengths", Tensor::from(std::vector<std::int64_t>{6}, {1}));
  const Tensor first = forward.run(inputs.tensors())[0];
  inputs.set("features", padded);
  inputs.set("lengths", Tensor::from(std::vector<std::int64_t>{6, 12}, {2}));
  const Tensor second = forward.run(inputs.tensors())[0];
  for (std::int64_t i = 0; i < first.size(); ++i) EXPECT_NEAR(first.at(i), second.at(i), 1e-5);
}

TEST(Segmenter, ImpossibleSizesAreRefused) {
  learn::ModelConfig m = small_model(learn::HeadKind::kSemiMarkov);
  m.classes = 0;
  EXPECT_THROW(learn::Segmenter{m}, UsageError);
  m = small_model(learn::HeadKind::kSemiMarkov);
  m.kernel = 4;
  EXPECT_THROW(learn::Segmenter{m}, UsageError);
}

}  // namespace
}  // namespace segfuse
