// Causal encoders: what comes later changes no bit, and pieces of a recording have those of the
// whole, states carried from one to the next included.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <string>
#include <vector>

#include "base/context/pool.h"
#include "base/rng.h"
#include "compiler/autodiff.h"
#include "engine/executable.h"
#include "ir/builder.h"
#include "ir/interpret/interpreter.h"
#include "ir/rules/verify.h"
#include "learn/train/commands/config.h"
#include "learn/train/decode/decoder.h"
#include "learn/train/files/recipe.h"
#include "learn/train/live/live_decoding.h"
#include "learn/train/loop/bound_inputs.h"
#include "segfuse/error.h"
#include "support/tensors.h"

namespace segfuse::learn {
namespace {

constexpr std::int64_t kColumns = 3;
constexpr std::int64_t kClasses = 4;

ModelConfig base_config() {
  ModelConfig config;
  config.width = 8;
  config.stem_kernel = 1;
  config.kernel = 3;
  config.dilations = {};
  config.recurrent_states = 5;
  config.attention_heads = 2;
  config.causal = true;
  config.features = kColumns;
  config.classes = kClasses;
  config.max_duration = 6;
  return config;
}

ModelConfig recurrent_config(nn::Recurrence kind) {
  ModelConfig config = base_config();
  config.dilations = {2};
  config.recurrence = kind;
  config.recurrent_blocks = 2;
  return config;
}

struct Kind {
  std::string name;
  ModelConfig config;
};

std::vector<Kind> kinds() {
  std::vector<Kind> all{{"Stem", base_config()},
                        {"Blocks", base_config()},
                        {"Groups", base_config()},
                        {"Lstm", recurrent_config(nn::Recurrence::kLstm)},
                        {"Gru", recurrent_config(nn::Recurrence::kGru)},
                        {"Ssm", recurrent_config(nn::Recurrence::kSsm)},
                        {"Attention", base_config()},
                        {"All", recurrent_config(nn::Recurrence::kLstm)}};
  all[0].config.stem_kernel = 5;
  all[1].config.dilations = {1, 3};
  all[2].config.dilations = {1, 2};
  all[2].config.subsample = 3;
  all[2].config.boundary_scores = true;
  all[6].config.attention_blocks = 2;
  all[7].config.attention_blocks = 1;
  all[7].config.subsample = 2;
  all[7].config.head = HeadKind::kSoftmax;
  return all;
}

/// With parameters large enough that every block counts.
std::vector<Tensor> parameters_of(const Segmenter& segmenter) {
  std::vector<Tensor> all;
  for (const nn::ParameterSpec& spec : segmenter.parameters()) {
    all.push_back(nn::initial_value(spec, 3));
    Rng rng(4, all.size());
    for (float& x : all.back().span<float>()) x += static_cast<float>(rng.normal() / 4);
  }
  return all;
}

Tensor noise(std::int64_t frames) {
  Tensor features(DType::kF32, {1, frames, kColumns});
  Rng rng(static_cast<std::uint64_t>(frames), 1);
  for (float& x : features.span<float>()) x = static_cast<float>(rng.normal());
  return features;
}

class EncoderAlone {
 public:
  EncoderAlone(const ModelConfig& config, const std::string& backend)
      : segmenter_(config),
        parameters_(parameters_of(segmenter_)),
        forward_(segmenter_.inference(), pool_of(how(backend).context), how(backend)),
        inputs_(forward_.fusion()) {
    for (std::size_t i = 0; i < parameters_.size(); ++i)
      if (inputs_.has(segmenter_.parameters()[i].name))
        inputs_.set(segmenter_.parameters()[i].name, parameters_[i]);
  }

  /// Of each output (T, C) its numbers.
  std::vector<std::vector<float>> scores(const Tensor& features, std::int64_t length) {
    inputs_.set("features", features);
    inputs_.set("lengths", Tensor::from(std::vector<std::int64_t>{length}, {1}));
    std::vector<std::vector<float>> all;
    for (const Tensor& output : forward_.run(inputs_.tensors())) {
      const auto values = output.span<float>();
      all.emplace_back(values.begin(), values.end());
    }
    return all;
  }

 private:
  static engine::ExecutableOptions how(const std::string& backend) {
    engine::ExecutableOptions options;
    options.backend = backend;
    return options;
  }

  Segmenter segmenter_;
  std::vector<Tensor> parameters_;
  engine::Executable forward_;
  BoundInputs inputs_;
};

/// Frames of an output whose bits differ.
std::vector<std::int64_t> changed(const std::vector<float>& a, const std::vector<float>& b) {
  std::vector<std::int64_t> frames;
  for (std::size_t t = 0; t < a.size() / kClasses; ++t)
    if (std::memcmp(&a[t * kClasses], &b[t * kClasses], kClasses * sizeof(float)) != 0)
      frames.push_back(static_cast<std::int64_t>(t));
  return frames;
}

class Causal : public ::testing::TestWithParam<std::tuple<std::size_t, const char*>> {};

INSTANTIATE_TEST_SUITE_P(Kinds, Causal,
                         ::testing::Combine(::testing::Range(std::size_t{0}, kinds().size()),
                                            ::testing::Values("compiled", "loops", "reference")),
                         [](const auto& of) {
                           return kinds()[std::get<0>(of.param)].name + "_" + std::get<1>(of.param);
                         });

TEST_P(Causal, ALaterFrameChangesNoBitOfAnEarlierOne) {
  const auto [which, backend] = GetParam();
  ModelConfig config = kinds()[which].config;
  constexpr std::int64_t kFrames = 36;
  const Tensor features = noise(kFrames);
  EncoderAlone encoder(config, backend);
  const auto before = encoder.scores(features, kFrames);
  for (const std::int64_t at : {0, 1, 7, 17, 18, 34, 35}) {
    SCOPED_TRACE(at);
    for (const float by : {1.0F, 1e4F}) {
      Tensor moved = features.clone();
      for (std::int64_t c = 0; c < kColumns; ++c)
        moved.span<float>()[static_cast<std::size_t>(at * kColumns + c)] -= by * float(c + 1);
      const auto after = encoder.scores(moved, kFrames);
      for (std::size_t i = 0; i < before.size(); ++i) {
        const std::vector<std::int64_t> frames = changed(before[i], after[i]);
        ASSERT_FALSE(frames.empty());
        EXPECT_EQ(frames.front(), at / config.subsample * config.subsample);
      }
    }
  }
  // Nor does it count how many there are, up to the rounding of products of another shape.
  const auto longer = encoder.scores(features, kFrames);
  const std::int64_t half = 18;
  const auto shorter = encoder.scores(features, half);
  for (std::size_t i = 0; i < longer.size(); ++i)
    for (std::size_t n = 0; n < half * kClasses; ++n) EXPECT_EQ(longer[i][n], shorter[i][n]) << n;
  // The same network that is not causal does look ahead.
  config.causal = false;
  EncoderAlone both(config, backend);
  Tensor last = features.clone();
  last.span<float>()[(kFrames - 1) * kColumns] += 1;
  const auto frames = changed(both.scores(features, kFrames)[0], both.scores(last, kFrames)[0]);
  ASSERT_FALSE(frames.empty());
  EXPECT_LT(frames.front(), (kFrames - 1) / config.subsample * config.subsample);
}

class CausalGradients : public ::testing::TestWithParam<nn::Recurrence> {};

INSTANTIATE_TEST_SUITE_P(Kinds, CausalGradients,
                         ::testing::Values(nn::Recurrence::kLstm, nn::Recurrence::kGru,
                                           nn::Recurrence::kSsm));

/// Of a convolution, a recurrence and attention, one behind the other.
TEST_P(CausalGradients, AreDifferences) {
  ir::Fusion f("causal");
  ir::Builder b(f);
  nn::Net net(b, {});
  const ir::Extent rows = f.symbol("B");
  const ir::Extent steps = f.symbol("T");
  const ir::ValId x = f.add_input("x", DType::kF32, {rows, steps, kColumns});
  const ir::ValId inside = f.add_input("inside", DType::kBool, {rows, steps, 1});
  const ir::ValId bias = f.add_input("bias", DType::kF32, {rows, ir::Extent(1), 1, steps});
  ir::ValId y = net.conv1d("conv", x, 4, 3, 2, 1, true);
  y = net.recurrent("r", y, GetParam(), 4, inside);
  y = net.self_attention("a", y, 2, bias, true);
  const ir::Extents shape = f.canonical(f.val(y).shape);
  const ir::ValId weights =
      b.sin(b.reshape(b.iota(shape[0] * shape[1] * shape[2], DType::kF32), shape));
  const ir::ValId total = b.sum(b.mul(y, weights), {0, 1, 2});
  std::vector<ir::ValId> of = net.values();
  of.push_back(x);
  f.add_output(total);
  for (const ir::ValId gradient : compiler::gradients(f, total, of)) f.add_output(gradient);
  ir::verify(f);
  Rng rng(5);
  std::vector<Tensor> given{testing::uniform(rng, DType::kF32, {2, 6, kColumns}),
                            Tensor::full(DType::kBool, {2, 6, 1}, 1),
                            Tensor::zeros(DType::kF32, {2, 1, 1, 6})};
  for (const nn::ParameterSpec& spec : net.parameters())
    given.push_back(testing::uniform(rng, DType::kF32, spec.shape, -1, 1));
  const std::vector<Tensor> found = ir::interpret(f, given);
  ThreadPool pool(2);
  const std::vector<Tensor> compiled = engine::Executable(f, pool).run(given);
  constexpr double kStep = 1.0 / 1024;
  for (std::size_t v = 0; v < of.size(); ++v) {
    const std::size_t input = v + 1 < of.size() ? v + 3 : 0;
    for (std::int64_t i = 0; i < given[input].size(); ++i) {
      double change = 0;
      double apart = 0;
      for (const double side : {1.0, -1.0}) {
        std::vector<Tensor> moved = given;
        moved[input] = moved[input].clone();
        moved[input].set(i, moved[input].at(i) + side * kStep);
        apart += side * moved[input].at(i);
        change += side * ir::interpret(f, moved)[0].at(0);
      }
      EXPECT_NEAR(found[v + 1].at(i), change / apart, 1e-4) << v << ", " << i;
      EXPECT_NEAR(compiled[v + 1].at(i), found[v + 1].at(i), 1e-4) << v << ", " << i;
    }
  }
}

Decoder decoder_of(const ModelConfig& config) {
  const Segmenter segmenter(config);
  const bool semi = config.head == HeadKind::kSemiMarkov;
  Tensor limits =
      Tensor::zeros(DType::kF32, semi ? Shape{config.max_duration, config.classes} : Shape{0});
  return {segmenter, parameters_of(segmenter), limits, {}};
}

FeaturePieces in_pieces(const Tensor& features, std::int64_t frames) {
  return [&features, frames, next = std::int64_t{0}]() mutable {
    const std::int64_t n = std::min(frames, features.shape()[1] - next);
    Tensor piece(DType::kF32, {n, kColumns});
    std::copy_n(features.span<float>().begin() + next * kColumns, n * kColumns,
                piece.span<float>().begin());
    next += n;
    return piece;
  };
}

Sequence sequence_of(const Tensor& features) {
  Tensor rows(DType::kF32, {features.shape()[1], kColumns});
  std::ranges::copy(features.span<float>(), rows.span<float>().begin());
  return {"noise", rows, {}};
}

class CausalPieces : public ::testing::TestWithParam<std::size_t> {};

INSTANTIATE_TEST_SUITE_P(Kinds, CausalPieces, ::testing::Range(std::size_t{0}, std::size_t{6}),
                         [](const auto& of) { return kinds()[of.param].name; });

TEST_P(CausalPieces, HaveTheBitsOfTheWhole) {
  const ModelConfig config = kinds()[GetParam()].config;
  Decoder decoder = decoder_of(config);
  Decoder::Options options;
  options.frame_posteriors = true;
  for (const std::int64_t frames : {1, 2, 19, 47, 49, 200, 611}) {
    const Tensor features = noise(frames);
    const Decoded whole = decoder.decode({sequence_of(features)}, options).front();
    for (const std::int64_t piece : {1, 20, 48, 100}) {
      SCOPED_TRACE(std::to_string(frames) + " frames in pieces of " + std::to_string(piece));
      options.piece_frames = piece;
      const Decoded found = decoder.decode_long("noise", in_pieces(features, 7), options);
      EXPECT_EQ(found.label, whole.label);
      EXPECT_EQ(found.log_probability, whole.log_probability);
      EXPECT_TRUE(std::ranges::equal(found.segments, whole.segments, {}, &DecodedSegment::segment,
                                     &DecodedSegment::segment));
    }
  }
}

std::vector<FrameSegment> live_segments(LiveDecoding& live, const FeaturePieces& next) {
  std::vector<FrameSegment> all;
  for (Tensor piece = next(); piece.shape()[0] > 0; piece = next()) {
    const std::vector<FrameSegment> some = live.push(piece);
    all.insert(all.end(), some.begin(), some.end());
  }
  const std::vector<FrameSegment> rest = live.finish();
  all.insert(all.end(), rest.begin(), rest.end());
  return all;
}

/// Two streams of one model at once, each with states of its own.
TEST_P(CausalPieces, LiveTheyHaveTheSegmentsOfTheWhole) {
  Decoder decoder = decoder_of(kinds()[GetParam()].config);
  const Tensor features = noise(400);
  const Tensor others = noise(401);
  const auto other = decoder.live("other", 4, std::nullopt);
  for (const std::int64_t piece : {1, 3, 64}) {
    const auto live = decoder.live("noise", 4, std::nullopt);
    (void)other->push(in_pieces(others, 100)());
    EXPECT_EQ(live_segments(*live, in_pieces(features, piece)),
              segments_of(decoder.decode({sequence_of(features)}, {})).front());
  }
}

TEST(CausalLive, TheNetworkLooksNoFrameAhead) {
  ModelConfig config = base_config();
  config.stem_kernel = 5;
  config.dilations = {1, 4};
  const std::int64_t least = decoder_of(config).least_lookahead(1);
  EXPECT_EQ(least, config.max_duration);
  config.causal = false;
  EXPECT_EQ(decoder_of(config).least_lookahead(1), config.max_duration + 2 + 5);
  EXPECT_EQ(decoder_of(recurrent_config(nn::Recurrence::kGru)).least_lookahead(4),
            config.max_duration + 3);
}

/// Runs from before there was such a key go on.
TEST(CausalRecipe, NamesOnlyAnEncoderThatIsCausal) {
  const auto recipe = [](const std::string& text) {
    return recipe_of(parse_train_config(text, "test"), Alphabet({"a"}));
  };
  const Recipe plain = recipe("");
  EXPECT_EQ(std::ranges::count(plain, "model.causal", &Recipe::value_type::first), 0);
  EXPECT_EQ(differences(plain, recipe("model.causal = false")), "");
  EXPECT_EQ(differences(plain, recipe("model.causal = true")),
            "model.causal: nothing then, true now");
}

TEST(CausalLive, AttentionIsRefused) {
  const ModelConfig config = kinds()[6].config;
  Decoder decoder = decoder_of(config);
  EXPECT_FALSE(decoder.can_decode_long({}));
  try {
    (void)decoder.live("mic", 4, std::nullopt);
    FAIL() << "nothing was said";
  } catch (const UsageError& error) {
    EXPECT_STREQ(error.what(),
                 "mic: this model's attention uses all earlier frames, which a stream does not "
                 "keep; decode whole recordings, or train a model with model.attention_blocks = 0");
  }
}

}  // namespace
}  // namespace segfuse::learn
