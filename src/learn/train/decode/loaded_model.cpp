#include "learn/train/decode/loaded_model.h"

#include <fmt/core.h>

#include "base/os/file.h"
#include "learn/train/decode/orders.h"
#include "segfuse/error.h"

namespace segfuse::learn {

std::filesystem::path model_path(const std::filesystem::path& given) {
  return path_is_directory(given) ? given / "model.safetensors" : given;
}

TrainedModel open_model(const std::filesystem::path& given, const std::string& channel) {
  const std::filesystem::path path = model_path(given);
  TrainedModel model = read_model(path);
  check_parameters(model, path);
  if (channel.empty()) return model;
  try {
    model.config.features.channel = audio_channel(channel, "--channel");
  } catch (const DataError& error) {
    throw UsageError(error.what());
  }
  return model;
}

LoadedModel::LoadedModel(TrainedModel model, const Context& context)
    : model_(std::move(model)),
      extractor_(model_.config.features),
      decoder_(Segmenter(model_.config.model), model_.parameters, model_.limits(),
               engine::executor_options(context)) {}

Decoder::Options LoadedModel::how(const InferenceOptions& options) const {
  if (options.k_best < 0 || options.samples < 0)
    throw UsageError(
        fmt::format("the numbers of segmentations (k-best, samples) are from 0 on, not {} and {}",
                    options.k_best, options.samples));
  Decoder::Options how;
  how.tolerance_frames =
      static_cast<std::int64_t>(model_.config.tolerances.front() / extractor_.hop_seconds() + 1e-9);
  how.minimum_risk = options.minimum_risk;
  how.k_best = options.k_best;
  how.samples = options.samples;
  how.seed = options.seed;
  how.frame_posteriors = options.posteriors;
  return how;
}

SegmentRules LoadedModel::rules() const { return segment_rules(model_); }

std::vector<Decoded> LoadedModel::align(const std::vector<Sequence>& sequences,
                                        const std::vector<semicrf::LabelOrders>& orders) {
  return decoder_.align(sequences, orders, rules().pieces);
}

Sequence LoadedModel::sequence_of(std::string id, Tensor features) const {
  const auto columns = static_cast<std::int64_t>(model_.normalisation.mean.size());
  if (features.shape()[1] != columns)
    throw DataError(
        fmt::format("{}: its features have {} columns, those of the model {}; all recordings need "
                    "the same channels or values",
                    id, features.shape()[1], columns));
  Sequence sequence{std::move(id), std::move(features), {}};
  model_.normalisation.apply(sequence.features);
  return sequence;
}

}  // namespace segfuse::learn
