#include "learn/train/model_file.h"

#include <nlohmann/json.hpp>

#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;

Json sizes_of(const TrainedModel& model) {
  const ModelConfig& m = model.config.model;
  return {{"version", kVersion},
          {"overrides", model.config.overrides},
          {"data", model.config.data.path},
          {"labels", model.labels.labels()},
          {"head", name_of(m.head)},
          {"features", m.features},
          {"max_duration", m.max_duration}};
}

HeadKind head_from_name(const std::string& name, const std::string& source) {
  for (const HeadKind kind : {HeadKind::kSemiMarkov, HeadKind::kLinearChain, HeadKind::kSoftmax})
    if (name_of(kind) == name) return kind;
  throw DataError("{}: the model has the unknown head '{}'", source, name);
}

Json parse_sizes(const std::string& text, const std::string& source) {
  Json json = Json::parse(text, nullptr, false);
  if (!json.is_object()) throw DataError("{}: the metadata 'model' is not a JSON object", source);
  if (!json.contains("version") || json["version"] != kVersion)
    throw DataError("{}: the model has version {}; this program reads version {}", source,
                    json.value("version", Json()).dump(), kVersion);
  return json;
}

void read_sizes(const Json& json, const std::string& source, TrainedModel& model) {
  model.config.data.path = json.at("data").get<std::string>();
  model.labels = Alphabet(json.at("labels").get<std::vector<std::string>>());
  ModelConfig& m = model.config.model;
  m.features = json.at("features").get<std::int64_t>();
  m.max_duration = json.at("max_duration").get<std::int64_t>();
  m.classes = model.labels.size();
  m.head = head_from_name(json.at("head").get<std::string>(), source);
}

}  // namespace

void write_model(const std::filesystem::path& path, const TrainedModel& model) {
  TensorFile file;
  file.metadata["config"] = model.config.text;
  file.metadata["model"] = sizes_of(model).dump();
  const auto width = static_cast<std::int64_t>(model.normalisation.mean.size());
  file.tensors.emplace_back("normalisation.mean", Tensor::from(model.normalisation.mean, {width}));
  file.tensors.emplace_back("normalisation.deviation",
                            Tensor::from(model.normalisation.deviation, {width}));
  file.tensors.emplace_back("duration_limit", model.duration_limit);
  const Segmenter segmenter(model.config.model);
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    file.tensors.emplace_back("parameter." + segmenter.parameters()[i].name, model.parameters[i]);
  write_safetensors(path, file);
}

TrainedModel read_model(const std::filesystem::path& path) {
  const std::string source = path.string();
  const TensorFile file = read_safetensors(path);
  const auto config = file.metadata.find("config");
  const auto sizes = file.metadata.find("model");
  if (config == file.metadata.end() || sizes == file.metadata.end())
    throw DataError("{}: no segfuse model: the metadata 'config' and 'model' are missing", source);
  TrainedModel model;
  try {
    const Json json = parse_sizes(sizes->second, source);
    model.config = parse_train_config(config->second, source + " (config)",
                                      json.at("overrides").get<std::vector<std::string>>());
    read_sizes(json, source, model);
  } catch (const Json::exception& error) {
    throw DataError("{}: the metadata 'model' cannot be read: {}", source, error.what());
  }
  auto doubles = [&](const std::string& name) {
    const auto values = file.at(name, source).span<double>();
    if (static_cast<std::int64_t>(values.size()) != model.config.model.features)
      throw DataError("{}: '{}' has {} values, the model has {} features", source, name,
                      values.size(), model.config.model.features);
    return std::vector<double>(values.begin(), values.end());
  };
  model.normalisation.mean = doubles("normalisation.mean");
  model.normalisation.deviation = doubles("normalisation.deviation");
  model.duration_limit = file.at("duration_limit", source);
  const Segmenter segmenter(model.config.model);
  for (const nn::ParameterSpec& spec : segmenter.parameters()) {
    const Tensor& tensor = file.at("parameter." + spec.name, source);
    if (tensor.shape() != spec.shape || tensor.dtype() != DType::kF32)
      throw DataError("{}: 'parameter.{}' is {}{}; the configuration asks for f32{}", source,
                      spec.name, name_of(tensor.dtype()), to_string(tensor.shape()),
                      to_string(spec.shape));
    model.parameters.push_back(tensor);
  }
  return model;
}

}  // namespace segfuse::learn
