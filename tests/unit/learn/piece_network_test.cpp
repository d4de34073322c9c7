// The network's scores of a recording in pieces, against those of the whole: the same bits.

#include <fmt/core.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/context/pool.h"
#include "base/rng.h"
#include "engine/executable.h"
#include "learn/train/live/piece_network.h"
#include "learn/train/loop/bound_inputs.h"

namespace segfuse::learn {
namespace {

constexpr std::int64_t kColumns = 13;

struct Encoder {
  const char* name;
  std::int64_t width, stem, kernel, subsample;
  std::vector<std::int64_t> dilations;
  HeadKind head;
  bool boundaries;
  bool causal = false;
};

/// With a stem of one step, no block, steps of several frames, and a reach beyond a piece.
const std::vector<Encoder>& encoders() {
  static const std::vector<Encoder> all{
      {"plain", 16, 5, 3, 1, {1, 2, 4}, HeadKind::kSemiMarkov, false},
      {"boundaries", 24, 3, 5, 1, {1, 3}, HeadKind::kSemiMarkov, true},
      {"stacked", 40, 5, 3, 3, {1, 2}, HeadKind::kSemiMarkov, true},
      {"stem", 8, 1, 3, 4, {}, HeadKind::kLinearChain, false},
      {"far", 64, 7, 3, 2, {1, 8, 32}, HeadKind::kLinearChain, false},
      {"wide", 128, 5, 5, 1, {1, 2, 4, 8}, HeadKind::kSemiMarkov, true},
      {"softmax", 33, 5, 3, 1, {1, 5}, HeadKind::kSoftmax, false},
      {"causal", 24, 5, 3, 1, {1, 2, 4}, HeadKind::kSemiMarkov, true, true},
      {"causal_stacked", 40, 3, 5, 3, {1, 8, 16}, HeadKind::kSoftmax, false, true},
  };
  return all;
}

ModelConfig config_of(const Encoder& encoder) {
  ModelConfig config;
  config.width = encoder.width;
  config.stem_kernel = encoder.stem;
  config.kernel = encoder.kernel;
  config.dilations = encoder.dilations;
  config.subsample = encoder.subsample;
  config.head = encoder.head;
  config.boundary_scores = encoder.boundaries;
  config.causal = encoder.causal;
  config.features = kColumns;
  config.classes = 7;
  config.max_duration = encoder.head == HeadKind::kSemiMarkov ? 9 : 1;
  return config;
}

/// The network with random parameters.
class Network {
 public:
  Network(const ModelConfig& config, const engine::ExecutableOptions& how)
      : config_(config),
        segmenter_(config),
        forward_(segmenter_.inference(), pool_of(how.context), how),
        inputs_(forward_.fusion()) {
    for (const nn::ParameterSpec& spec : segmenter_.parameters()) {
      parameters_.push_back(nn::initial_value(spec, 3));
      Rng rng(4, parameters_.size());
      for (float& x : parameters_.back().span<float>()) x += static_cast<float>(rng.normal() / 20);
      if (inputs_.has(spec.name)) inputs_.set(spec.name, parameters_.back());
    }
  }

  std::vector<Tensor> run(const Tensor& features, const Tensor& lengths) {
    inputs_.set("features", features);
    inputs_.set("lengths", lengths);
    return forward_.run(inputs_.tensors());
  }

  using Scores = std::vector<std::vector<float>>;

  Scores whole(const Tensor& features) {
    const std::int64_t frames = features.shape()[0];
    const std::int64_t time =
        (frames + config_.subsample - 1) / config_.subsample * config_.subsample;
    Tensor padded = Tensor::zeros(DType::kF32, {1, time, kColumns});
    std::ranges::copy(features.span<float>(), padded.span<float>().begin());
    Scores scores;
    for (const Tensor& all : run(padded, Tensor::from(std::vector<std::int64_t>{frames}, {1}))) {
      const auto values = all.span<float>();
      scores.emplace_back(values.begin(), values.begin() + frames * config_.classes);
    }
    return scores;
  }

  Scores in_pieces(const Tensor& features, std::int64_t piece, std::int64_t arriving) {
    PieceNetwork network(config_, "noise", piece);
    Scores scores(config_.boundary_scores ? 3 : 1);
    const PieceNetwork::Run run_it = [&](const Tensor& x, const Tensor& n, PieceState&) {
      return run(x, n);
    };
    const PieceNetwork::Take take = [&](const PieceScores& some) {
      const float* parts[] = {some.emission, some.start, some.end};
      for (std::size_t i = 0; i < scores.size(); ++i)
        scores[i].insert(scores[i].end(), parts[i], parts[i] + some.frames * config_.classes);
    };
    const std::int64_t frames = features.shape()[0];
    for (std::int64_t first = 0; first < frames; first += arriving) {
      const std::int64_t n = std::min(arriving, frames - first);
      Tensor some(DType::kF32, {n, kColumns});
      std::copy_n(features.span<float>().begin() + first * kColumns, n * kColumns,
                  some.span<float>().begin());
      network.push(some, run_it, take);
    }
    network.finish(run_it, take);
    return scores;
  }

 private:
  ModelConfig config_;
  Segmenter segmenter_;
  engine::Executable forward_;
  BoundInputs inputs_;
  std::vector<Tensor> parameters_;
};

Tensor noise(std::int64_t frames) {
  Tensor features(DType::kF32, {frames, kColumns});
  Rng rng(static_cast<std::uint64_t>(frames), 1);
  for (float& x : features.span<float>()) x = static_cast<float>(rng.normal());
  return features;
}

/// Numbers whose bits differ.
std::int64_t differences(const Network::Scores& a, const Network::Scores& b) {
  if (a.size() != b.size()) return -1;
  std::int64_t count = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a[i].size() != b[i].size()) return -1;
    for (std::size_t j = 0; j < a[i].size(); ++j)
      count += std::memcmp(&a[i][j], &b[i][j], sizeof(float)) != 0 ? 1 : 0;
  }
  return count;
}

class PieceNetworks : public ::testing::TestWithParam<std::tuple<std::size_t, const char*, int>> {};

INSTANTIATE_TEST_SUITE_P(Encoders, PieceNetworks,
                         ::testing::Combine(::testing::Range(std::size_t{0}, encoders().size()),
                                            ::testing::Values("compiled", "loops"),
                                            ::testing::Values(1, 2)),
                         [](const auto& of) {
                           return fmt::format("{}_{}_{}", encoders()[std::get<0>(of.param)].name,
                                              std::get<1>(of.param), std::get<2>(of.param));
                         });

TEST_P(PieceNetworks, HaveTheBitsOfTheWhole) {
  const auto [which, backend, threads] = GetParam();
  engine::ExecutableOptions how;
  how.backend = backend;
  Options options;
  options.set(options::kThreads, std::int64_t{threads});
  how.context = Context(std::move(options));
  Network network(config_of(encoders()[which]), how);
  // Around the blocks of a product and pieces.
  for (const std::int64_t frames : {1, 2, 47, 49, 191, 193, 500, 1501}) {
    const Tensor features = noise(frames);
    const Network::Scores whole = network.whole(features);
    for (const std::int64_t piece : {5, 48, 100, 500}) {
      SCOPED_TRACE(fmt::format("{} frames in pieces of {}", frames, piece));
      EXPECT_EQ(differences(network.in_pieces(features, piece, 64), whole), 0);
    }
  }
}

TEST(PieceNetwork, TakesFramesFromStepsOfTheEncoderOn) {
  for (const Encoder& encoder : encoders()) {
    const ModelConfig config = config_of(encoder);
    SCOPED_TRACE(encoder.name);
    const std::int64_t period = config.subsample;
    Tensor features = Tensor::zeros(DType::kF32, {2000, kColumns});
    for (std::int64_t t = 0; t < 2000; ++t)
      features.span<float>()[static_cast<std::size_t>(t * kColumns)] = static_cast<float>(t);
    std::vector<std::int64_t> firsts;
    const PieceNetwork::Run run = [&](const Tensor& x, const Tensor&, PieceState&) {
      firsts.push_back(static_cast<std::int64_t>(x.span<float>()[0]));
      const std::int64_t time = x.shape()[1];
      return std::vector<Tensor>(config.boundary_scores ? 3 : 1,
                                 Tensor::zeros(DType::kF32, {1, time, config.classes}));
    };
    const PieceNetwork::Take take = [](const PieceScores&) {};
    PieceNetwork network(config, "frames", 100);
    network.push(features, run, take);
    network.finish(run, take);
    for (const std::int64_t first : firsts) EXPECT_EQ(first % period, 0) << first;
    EXPECT_GT(firsts.back(), 2000 - 100 - 300 - period);
  }
}

}  // namespace
}  // namespace segfuse::learn
