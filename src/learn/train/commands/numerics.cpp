// segfuse doctor numerics for a training: see the contract in segfuse/train.h.

#include <fmt/core.h>

#include <algorithm>

#include "engine/numerics/examine.h"
#include "learn/data/buckets.h"
#include "learn/train/commands/experiment.h"
#include "learn/train/loop/bound_inputs.h"
#include "segfuse/error.h"
#include "segfuse/train.h"

namespace segfuse {
namespace {

using namespace learn;

/// The first `frames` of a recording, its last segment shortened.
Sequence beginning_of(const Sequence& whole, std::int64_t frames) {
  if (frames == 0 || whole.frames() <= frames) return whole;
  Sequence part{whole.id, Tensor(whole.features.dtype(), {frames, whole.features.shape()[1]}), {}};
  const auto from =
      whole.features.span<float>().first(static_cast<std::size_t>(part.features.size()));
  std::copy(from.begin(), from.end(), part.features.span<float>().begin());
  for (FrameSegment segment : whole.segments) {
    if (segment.start >= frames) break;
    segment.duration = std::min(segment.duration, frames - segment.start);
    part.segments.push_back(segment);
  }
  return part;
}

std::vector<Tensor> trained_parameters(const std::filesystem::path& path,
                                       const Segmenter& segmenter) {
  const TrainedModel model = read_model(model_path(path));
  for (std::size_t i = 0; i < segmenter.parameters().size(); ++i) {
    const nn::ParameterSpec& spec = segmenter.parameters()[i];
    if (i >= model.parameters.size() || model.parameters[i].shape() != spec.shape)
      throw UsageError(fmt::format(
          "{}: its parameter '{}' does not fit the model that the configuration and data make; "
          "pass the configuration and data that it was trained with",
          path.string(), spec.name));
  }
  return model.parameters;
}

}  // namespace

NumericsReport examine_training_numerics(const TrainingNumericsOptions& options) {
  if (options.runs < 2 || options.sequences < 0 || options.frames < 0)
    throw UsageError(fmt::format(
        "--runs is {}, --sequences {} and --frames {}; expected at least 2 runs, and numbers from "
        "0 "
        "on",
        options.runs, options.sequences, options.frames));
  TrainConfig config = read_train_config(options.config, options.overrides);
  config.data.allow_commands = options.allow_commands;
  if (!options.data.empty()) set_data_path(config, options.data);
  Corpus corpus = load_corpus(config, {}, options.context);
  Start start = start_of(config, config.model.head, corpus);
  const Segmenter segmenter(start.model.config.model);
  if (!options.model.empty()) start.parameters = trained_parameters(options.model, segmenter);

  const std::vector<Sequence> all = training_sequences(config, corpus);
  std::vector<std::int64_t> lengths;
  for (const Sequence& sequence : all) lengths.push_back(sequence.frames());
  const TrainingPlan& plan = config.training;
  std::vector<std::int64_t> rows = make_buckets(lengths, shard_batches(plan), 0).at(0);
  if (options.sequences > 0 && static_cast<std::int64_t>(rows.size()) > options.sequences)
    rows.resize(static_cast<std::size_t>(options.sequences));
  std::vector<Sequence> sequences;
  std::vector<std::int64_t> order;
  std::int64_t longest = 0;
  for (const std::int64_t row : rows) {
    order.push_back(static_cast<std::int64_t>(sequences.size()));
    sequences.push_back(beginning_of(all[static_cast<std::size_t>(row)], options.frames));
    longest = std::max(longest, sequences.back().frames());
  }

  const ir::Fusion fusion = segmenter.training(plan.precision);
  BoundInputs inputs(fusion);
  for (std::size_t i = 0; i < start.parameters.size(); ++i)
    inputs.set(segmenter.parameters()[i].name, start.parameters[i]);
  for (const auto& [name, limit] : start.model.limits().named())
    if (inputs.has(name)) inputs.set(name, limit);
  const Batch batch = make_batch(sequences, order, segmenter.config());
  bind_batch(inputs, batch, {plan.seed, 0, batch.segments});
  NumericsReport report = engine::numerics::examine(
      fusion, inputs.tensors(), engine::numerics::place_of(options.context), options.runs);
  report.name = options.config.string();
  report.notes.insert(report.notes.begin(),
                      fmt::format("the first step over {} of {} sequences, at most {} frames of "
                                  "each; --sequences and --frames change that",
                                  sequences.size(), all.size(), longest));
  if (plan.precision == Precision::kTF32)
    report.notes.emplace_back("the products of TF32 steps are examined in float32");
  return report;
}

}  // namespace segfuse
