// Models that were trained elsewhere.

#include <fmt/core.h>

#include <cmath>
#include <utility>

#include "base/os/file.h"
#include "learn/model/given_encoder.h"
#include "learn/train/decode/given_model.h"
#include "learn/train/loop/crf_start.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// A parameter of the CRF as the segmenter has it.
Tensor score(const char* name, const Tensor& given, const Shape& expected, const Shape& as) {
  if (given.dtype() != DType::kF32 || given.shape() != expected)
    throw UsageError(fmt::format("the CRF's scores '{}' are {}{}, expected f32{}", name,
                                 name_of(given.dtype()), to_string(given.shape()),
                                 to_string(expected)));
  const auto values = given.span<float>();
  for (const float value : values)
    if (!std::isfinite(value))
      throw UsageError(fmt::format("the CRF's scores '{}' hold {}; expected finite numbers", name,
                                   static_cast<double>(value)));
  return Tensor::from(std::vector<float>(values.begin(), values.end()), as);
}

HeadKind head_of(const ModelParts& parts) {
  if (parts.transition.size() == 0) return HeadKind::kSoftmax;
  return parts.duration.size() == 0 ? HeadKind::kLinearChain : HeadKind::kSemiMarkov;
}

TrainConfig config_of(const ModelParts& parts) {
  TrainConfig config = parse_train_config("", "the settings", parts.settings);
  const std::int64_t columns = FeatureExtractor(config.features).num_features();
  ModelConfig& model = config.model;
  model.features = columns > 0 ? columns : parts.channels;
  if (model.features < 1)
    throw UsageError("a model of values needs the number of channels; found none");
  model.classes = std::ssize(parts.labels);
  model.head = head_of(parts);
  model.max_duration = model.head == HeadKind::kSemiMarkov ? parts.duration.shape().at(0) : 1;
  return config;
}

}  // namespace

TrainedModel model_of(const ModelParts& parts) {
  TrainedModel model;
  model.labels = Alphabet(parts.labels);
  model.config = config_of(parts);
  set_encoder(model.config, std::make_shared<GivenEncoder>(
                                parts.encoder(model.config.model.features, parts.labels)));
  const ModelConfig& config = model.config.model;
  if (!config.given->encoder().scores)
    throw UsageError("the encoder gives features; a model that is not trained here needs scores");
  const auto columns = static_cast<std::size_t>(config.features);
  model.normalisation.mean.assign(columns, 0);
  model.normalisation.deviation.assign(columns, 1);
  const std::int64_t c = config.classes;
  const std::int64_t k = config.max_duration;
  const bool semi = config.head == HeadKind::kSemiMarkov;
  model.duration_limit = Tensor::zeros(DType::kF32, semi ? Shape{k, c} : Shape{0});
  const Segmenter segmenter(config);
  model.parameters = segmenter.initial(0);
  for (std::size_t i = 0; i < model.parameters.size(); ++i) {
    const std::string& name = segmenter.parameters()[i].name;
    Tensor& to = model.parameters[i];
    if (name == "crf.transition") to = score("transition", parts.transition, {c, c}, {1, c, c});
    if (name == "crf.duration") to = score("duration", parts.duration, {k, c}, {k, c});
    if (name == "crf.initial") to = score("initial", parts.initial, {c}, {c});
    if (name == "crf.final") to = score("final", parts.final, {c}, {c});
  }
  return model;
}

void save_model(const TrainedModel& model, const std::filesystem::path& path, bool overwrite) {
  const std::filesystem::path file = path_is_directory(path) ? path / "model.safetensors" : path;
  if (path_exists(file) && !overwrite)
    throw UsageError(fmt::format(
        "{}: the file exists already; choose another name, or overwrite it", file.string()));
  write_model(file, model);
}

}  // namespace segfuse::learn
