// Durations that follow a formula: the same scores and gradients in a Fusion as from the engine,
// losses and paths as enumerated by hand, and first values that fit what was counted.

#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <vector>

#include "base/rng.h"
#include "compiler/autodiff.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "learn/model/durations.h"
#include "learn/train/commands/config.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/files/recipe.h"
#include "learn/train/loop/bound_inputs.h"
#include "learn/train/loop/crf_start.h"
#include "segfuse/error.h"
#include "support/tensors.h"

namespace segfuse::learn {
namespace {

using semicrf::DurationFamily;

ModelConfig config_of(DurationFamily family, std::int64_t longest, std::int64_t classes) {
  ModelConfig config;
  config.width = 4;
  config.stem_kernel = 1;
  config.dilations = {};
  config.dropout = 0;
  config.durations = family;
  config.duration_buckets = 4;
  config.features = 2;
  config.classes = classes;
  config.max_duration = longest;
  return config;
}

class Durations : public ::testing::TestWithParam<DurationFamily> {};

INSTANTIATE_TEST_SUITE_P(Families, Durations,
                         ::testing::Values(DurationFamily::kTable, DurationFamily::kGeometric,
                                           DurationFamily::kNegativeBinomial,
                                           DurationFamily::kPoisson, DurationFamily::kLogNormal,
                                           DurationFamily::kBuckets));

TEST_P(Durations, HaveTheScoresAndGradientsOfTheEngine) {
  for (const std::int64_t longest : {1, 2, 7, 300}) {
    SCOPED_TRACE(longest);
    constexpr std::int64_t kClasses = 5;
    const ModelConfig config = config_of(GetParam(), longest, kClasses);
    const semicrf::DurationModel model = duration_model(config);
    const std::int64_t count = semicrf::duration_parameters(model);
    Rng rng(3);
    Tensor parameters = testing::uniform(rng, DType::kF32, {count, kClasses}, -2, 3);
    for (std::int64_t i = 0; i < count; ++i) parameters.set(i * kClasses, 0);  // where signs meet
    const Tensor weights = testing::uniform(rng, DType::kF32, {longest, kClasses}, -1, 1);
    ir::Fusion f("durations");
    ir::Builder b(f);
    const ir::ValId p = f.add_input("p", DType::kF32, {ir::Extent(count), ir::Extent(kClasses)});
    const ir::ValId w = f.add_input("w", DType::kF32, {ir::Extent(longest), ir::Extent(kClasses)});
    const ir::ValId scores = duration_scores(b, config, p);
    const ir::ValId total = b.sum(b.mul(scores, w), {0, 1});
    f.add_output(scores);
    f.add_output(compiler::gradients(f, total, std::vector{p})[0]);
    ir::verify(f);
    const auto view = [&](const Tensor& t) -> semicrf::View<const float, 2> {
      return {t.span<float>().data(), {t.shape()[0], t.shape()[1]}};
    };
    Tensor wanted = Tensor::zeros(DType::kF32, {longest, kClasses});
    Tensor gradient = Tensor::zeros(DType::kF32, {count, kClasses});
    semicrf::duration_scores<float>(model, view(parameters),
                                    {wanted.span<float>().data(), {longest, kClasses}});
    semicrf::duration_gradient<float>(model, view(parameters), view(weights),
                                      {gradient.span<float>().data(), {count, kClasses}});
    ThreadPool pool(2);
    for (const bool compiled : {false, true}) {
      const std::vector<Tensor> inputs{parameters, weights};
      const std::vector<Tensor> found =
          compiled ? engine::Executable(f, pool).run(inputs) : ir::interpret(f, inputs);
      for (std::int64_t i = 0; i < wanted.size(); ++i)
        EXPECT_NEAR(found[0].at(i), wanted.at(i), 1e-6 * (1 + std::abs(wanted.at(i)))) << i;
      for (std::int64_t i = 0; i < gradient.size(); ++i)
        EXPECT_NEAR(found[1].at(i), gradient.at(i), 1e-4 * (1 + std::abs(gradient.at(i)))) << i;
    }
    EXPECT_TRUE(testing::same_bits(duration_scores(config, parameters), wanted));
  }
}

struct Model {
  explicit Model(ModelConfig config) : segmenter(std::move(config)) {
    for (const nn::ParameterSpec& spec : segmenter.parameters()) {
      parameters.push_back(nn::initial_value(spec, 3));
      Rng rng(4, parameters.size());
      for (float& x : parameters.back().span<float>()) x += static_cast<float>(rng.normal() / 2);
    }
  }
  const Tensor& of(const std::string& name) const {
    for (std::size_t i = 0; i < parameters.size(); ++i)
      if (segmenter.parameters()[i].name == name) return parameters[i];
    throw InternalError(name);
  }

  Segmenter segmenter;
  std::vector<Tensor> parameters;
};

/// All segmentations of some frames, as (duration, label).
using Segments = std::vector<std::pair<std::int64_t, std::int64_t>>;
void enumerate(std::int64_t frames, std::int64_t longest, std::int64_t classes, Segments& made,
               const std::function<void(const Segments&)>& visit) {
  if (frames == 0) return visit(made);
  for (std::int64_t d = 1; d <= std::min(frames, longest); ++d)
    for (std::int64_t c = 0; c < classes; ++c) {
      made.emplace_back(d, c);
      enumerate(frames - d, longest, classes, made, visit);
      made.pop_back();
    }
}

TEST_P(Durations, LossAndPathAreThoseOfAllSegmentations) {
  constexpr std::int64_t kFrames = 6, kLongest = 4, kClasses = 2;
  const Model model(config_of(GetParam(), kLongest, kClasses));
  const Tensor limits = duration_limit_table({4, 3}, kLongest, {1, 2});
  Decoder decoder(model.segmenter, model.parameters, limits, {});
  Sequence sequence{"x", Tensor(DType::kF32, {kFrames, 2}), {{0, 1, 0}, {1, 3, 1}, {4, 2, 0}}};
  Rng rng(9);
  for (float& x : sequence.features.span<float>()) x = static_cast<float>(rng.normal());
  ThreadPool pool(1);
  const auto bind = [&](BoundInputs& inputs) {
    for (std::size_t i = 0; i < model.parameters.size(); ++i)
      if (inputs.has(model.segmenter.parameters()[i].name))
        inputs.set(model.segmenter.parameters()[i].name, model.parameters[i]);
    Tensor features(DType::kF32, {1, kFrames, 2});
    std::ranges::copy(sequence.features.span<float>(), features.span<float>().begin());
    inputs.set("features", features);
    inputs.set("lengths", Tensor::from(std::vector<std::int64_t>{kFrames}, {1}));
  };
  engine::Executable forward(model.segmenter.inference(), pool);
  BoundInputs inputs(forward.fusion());
  bind(inputs);
  const Tensor emission = forward.run(inputs.tensors())[0];
  const Tensor durations = duration_scores(model.segmenter.config(), model.of("crf.duration"));
  const auto score = [&](const Segments& segments) {
    double sum = model.of("crf.initial").at(segments.front().second) +
                 model.of("crf.final").at(segments.back().second);
    std::int64_t t = 0;
    for (std::size_t i = 0; i < segments.size(); ++i) {
      const auto [d, c] = segments[i];
      if (i > 0) sum += model.of("crf.transition").at(segments[i - 1].second * kClasses + c);
      sum += durations.at((d - 1) * kClasses + c) + limits.at((d - 1) * kClasses + c);
      for (std::int64_t k = 0; k < d; ++k) sum += emission.at(t++ * kClasses + c);
    }
    return sum;
  };
  double total = 0;
  double most = -std::numeric_limits<double>::infinity();
  Segments best, made;
  enumerate(kFrames, kLongest, kClasses, made, [&](const Segments& segments) {
    total += std::exp(score(segments));
    if (score(segments) > most) {
      most = score(segments);
      best = segments;
    }
  });
  const Decoded decoded = decoder.decode({sequence}, {}).front();
  Segments path;
  for (const DecodedSegment& s : decoded.segments)
    path.emplace_back(s.segment.duration, s.segment.label);
  EXPECT_EQ(path, best);
  EXPECT_NEAR(decoded.log_probability, most - std::log(total), 1e-5);
  const double loss = std::log(total) - score({{1, 0}, {3, 1}, {2, 0}});
  EXPECT_NEAR(decoder.loss({sequence}), loss, 1e-5);
  engine::Executable training(model.segmenter.training(), pool);
  BoundInputs learnt(training.fusion());
  bind(learnt);
  learnt.set("labels", Tensor::from(std::vector<std::int32_t>{0, 1, 1, 1, 0, 0}, {1, kFrames}));
  Tensor starts = Tensor::zeros(DType::kBool, {1, kFrames});
  for (const std::int64_t t : {0, 1, 4}) starts.set(t, 1);
  learnt.set("segment_start", starts);
  learnt.set("duration_limit", limits);
  learnt.set("scale", Tensor::full(DType::kF32, {}, 1));
  if (learnt.has("seed")) learnt.set("seed", Tensor::zeros(DType::kI64, {2}));
  EXPECT_NEAR(training.run(learnt.tensors())[0].at(0), loss, 1e-5);
}

/// First values whose distribution has the mean of what was counted.
TEST_P(Durations, BeginWithWhatWasCounted) {
  constexpr std::int64_t kLongest = 60;
  const Model model(config_of(GetParam(), kLongest, 3));
  LabelStatistics statistics{{1, 1, 1},
                             {1, 1, 1},
                             {3, std::vector<double>(3, 1)},
                             std::vector<std::vector<double>>(kLongest, std::vector<double>(3, 0)),
                             {kLongest, kLongest, 0}};
  // Of label 0 about 12 frames, of label 1 falling from 1 on, of label 2 none.
  for (std::int64_t d = 0; d < kLongest; ++d) {
    statistics.duration[static_cast<std::size_t>(d)][0] =
        std::round(1000 * std::exp(-0.5 * std::pow((double(d) - 11) / 3, 2)));
    statistics.duration[static_cast<std::size_t>(d)][1] = std::round(1000 * std::pow(0.8, d));
  }
  std::vector<Tensor> parameters = model.parameters;
  start_crf(model.segmenter, statistics, parameters);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    if (model.segmenter.parameters()[i].name != "crf.duration") continue;
    const Tensor scores = duration_scores(model.segmenter.config(), parameters[i]);
    for (const auto& [label, wanted, within] :
         {std::tuple(0, 12.0, GetParam() == DurationFamily::kBuckets ? 3.0 : 1.2), {1, 5.0, 1.3}}) {
      double mean = 0;
      double sum = 0;
      for (std::int64_t d = 1; d <= kLongest; ++d) {
        const double p = std::exp(scores.at((d - 1) * 3 + label));
        sum += p;
        mean += p * double(d);
      }
      EXPECT_NEAR(sum, 1, 1e-3);
      EXPECT_NEAR(mean, wanted, within) << label;
    }
    for (std::int64_t d = 0; d < kLongest; ++d) EXPECT_TRUE(std::isfinite(scores.at(d * 3 + 2)));
  }
}

TEST(DurationKeys, AreForTheSemiMarkovHead) {
  const auto said = [](const std::string& text) -> std::string {
    try {
      (void)parse_train_config(text, "x.toml");
    } catch (const DataError& error) {
      return error.what();
    }
    return "";
  };
  EXPECT_EQ(said("model.durations = \"poisson\""), "");
  EXPECT_NE(said("model.durations = \"poisson\"\nmodel.head = \"softmax\"")
                .find("'model.durations' needs model.head = \"semi_markov\""),
            std::string::npos)
      << said("model.durations = \"poisson\"\nmodel.head = \"softmax\"");
  EXPECT_NE(said("model.durations = \"gamma\"").find("log_normal"), std::string::npos);
}

/// Runs from before there were such keys go on.
TEST(DurationKeys, AreNamedInRecipesWhereTheyAreInUse) {
  const auto recipe = [](const std::string& text) {
    return recipe_of(parse_train_config(text, "test"), Alphabet({"a"}));
  };
  EXPECT_EQ(differences(recipe(""), recipe("model.duration_buckets = 3")), "");
  EXPECT_EQ(differences(recipe(""), recipe("model.durations = \"poisson\"")),
            "model.durations: nothing then, \"poisson\" now");
  EXPECT_EQ(differences(recipe("model.durations = \"buckets\""),
                        recipe("model.durations = \"buckets\"\nmodel.duration_buckets = 3")),
            "model.duration_buckets: 8 then, 3 now");
}

}  // namespace
}  // namespace segfuse::learn
