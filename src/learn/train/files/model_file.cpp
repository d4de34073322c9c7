#include "learn/train/files/model_file.h"

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <system_error>

#include "base/console/printable.h"
#include "base/json/json.h"
#include "base/os/file.h"
#include "learn/model/given_encoder.h"
#include "learn/train/files/safetensors.h"
#include "segfuse/error.h"
#include "segfuse/model.h"

namespace segfuse::learn {
namespace {

constexpr int kModelVersion = 1;

Json sizes_of(const TrainedModel& model) {
  const ModelConfig& m = model.config.model;
  return {{"version", kModelVersion},       {"overrides", model.config.overrides},
          {"data", model.config.data.path}, {"labels", model.labels.labels()},
          {"head", name_of(m.head)},        {"features", m.features},
          {"max_duration", m.max_duration}, {"joins_neighbours", m.joins_neighbours}};
}

constexpr std::int64_t kMaxColumns = 1'000'000;  // of the features
constexpr std::int64_t kMaxFrames = 1'000'000;   // of a segment, as in the configuration

void read_sizes(const JsonPlace& json, TrainedModel& model) {
  constexpr std::array kHeads = {HeadKind::kSemiMarkov, HeadKind::kLinearChain, HeadKind::kSoftmax};
  const std::array names = {name_of(kHeads[0]), name_of(kHeads[1]), name_of(kHeads[2])};
  model.config.data.path = json.at("data").text();
  model.labels = Alphabet(json.at("labels").texts());
  if (model.labels.size() == 0) json.at("labels").refuse("at least one label");
  ModelConfig& m = model.config.model;
  m.features = json.at("features").integer(1, kMaxColumns);
  const std::int64_t columns = FeatureExtractor(model.config.features).num_features();
  if (columns > 0 && m.features != columns)
    json.at("features").refuse(fmt::format("the {} columns of the configuration", columns));
  m.max_duration = json.at("max_duration").integer(1, kMaxFrames);
  m.classes = model.labels.size();
  if (const auto joins = json.find("joins_neighbours")) {
    joins->for_each([&](const JsonPlace& label) { m.joins_neighbours.push_back(label.boolean()); });
    if (!m.joins_neighbours.empty() && std::ssize(m.joins_neighbours) != m.classes)
      joins->refuse("one for each label, or none");
  }
  m.head = kHeads[json.at("head").one_of(names)];
  m.ordered = is_ordered(model.config, m.head);
}

std::string encoder_json(const Encoder& encoder) {
  Json json = {{"name", encoder.name},           {"training", encoder.training},
               {"inference", encoder.inference}, {"stride", encoder.stride},
               {"scores", encoder.scores},       {"most_steps", encoder.most_steps}};
  for (const auto& [key, tensors] :
       {std::pair("parameters", &encoder.parameters), {"constants", &encoder.constants}}) {
    json[key] = Json::array();
    for (const auto& [name, tensor] : *tensors) json[key].push_back(name);
  }
  return json_text(json);
}

/// The encoder that a file brings with it.
void read_encoder(const TensorFile& file, const std::string& source, TrainConfig& config) {
  const auto text = file.metadata.find("encoder");
  if (text == file.metadata.end()) return;
  const std::string place = source + ": the metadata 'encoder'";
  const Json parsed = parse_json(text->second, place);
  const JsonPlace json(parsed, place);
  constexpr std::int64_t kMax = 1'000'000;
  Encoder encoder;
  encoder.name = json.at("name").text();
  encoder.training = json.at("training").text();
  encoder.inference = json.at("inference").text();
  encoder.stride = json.at("stride").integer(1, kMax);
  encoder.scores = json.at("scores").boolean();
  encoder.most_steps =
      json.at("most_steps").integer(0, std::numeric_limits<std::int64_t>::max() / kMax);
  for (const std::string& name : json.at("parameters").texts())
    encoder.parameters.emplace_back(name, file.at("parameter.encoder." + name, source));
  for (const std::string& name : json.at("constants").texts())
    encoder.constants.emplace_back(name, file.at("constant.encoder." + name, source));
  try {
    set_encoder(config, std::make_shared<GivenEncoder>(std::move(encoder), false));
  } catch (const DataError& error) {
    throw DataError(fmt::format("{}: {}", place, error.what()));
  }
}

/// Tensors of a model file by name, each of the type and shape that is requested.
class Tensors {
 public:
  Tensors(const TensorFile& file, const std::string& source) : file_(file), source_(source) {}

  const Tensor& get(const std::string& name, DType dtype, const Shape& shape) const {
    const Tensor& tensor = file_.at(name, source_);
    if (tensor.shape() != shape || tensor.dtype() != dtype)
      throw DataError(fmt::format("{}: '{}' is {}{}; the configuration asks for {}{}", source_,
                                  name, name_of(tensor.dtype()), to_string(tensor.shape()),
                                  name_of(dtype), to_string(shape)));
    return tensor;
  }
  /// Without NaN; `allowed` says which values are not.
  template <class T, class Allowed>
  const Tensor& get(const std::string& name, DType dtype, const Shape& shape,
                    std::string_view expected, const Allowed& allowed) const {
    const Tensor& tensor = get(name, dtype, shape);
    for (const T value : tensor.span<T>())
      if (!allowed(value))
        throw DataError(
            fmt::format("{}: '{}' holds {}; expected {}", source_, name, value, expected));
    return tensor;
  }
  std::vector<double> column(const std::string& name, std::int64_t size, double least) const {
    const auto values =
        get<double>(name, DType::kF64, {size}, least > 0 ? "numbers above 0" : "finite numbers",
                    [&](double v) { return std::isfinite(v) && (least == 0 || v >= least); })
            .template span<double>();
    return {values.begin(), values.end()};
  }
  /// Parameters that the model lacks would belong to another configuration.
  void check_parameters(const std::vector<nn::ParameterSpec>& known) const {
    for (const auto& [name, tensor] : file_.tensors) {
      const std::string_view prefix = "parameter.";
      if (!name.starts_with(prefix)) continue;
      if (std::ranges::find(known, name.substr(prefix.size()), &nn::ParameterSpec::name) ==
          known.end())
        throw DataError(
            fmt::format("{}: '{}' belongs to another model than the configuration describes",
                        source_, printable_line(name)));
    }
  }

 private:
  const TensorFile& file_;
  const std::string& source_;
};

void read_tensors(const Tensors& tensors, TrainedModel& model) {
  constexpr double kMin = std::numeric_limits<double>::min();
  const ModelConfig& m = model.config.model;
  model.normalisation.mean = tensors.column("normalisation.mean", m.features, 0);
  model.normalisation.deviation = tensors.column("normalisation.deviation", m.features, kMin);
  const bool semi = m.head == HeadKind::kSemiMarkov;
  const auto limit = [&](const char* name, const Shape& shape) {
    return tensors.get<float>(name, DType::kF32, shape, "0 or -inf", [](float v) {
      return v == 0 || v == -std::numeric_limits<float>::infinity();
    });
  };
  model.duration_limit =
      limit("duration_limit", semi ? Shape{m.max_duration, m.classes} : Shape{0});
  if (m.ordered)
    model.order_limit = {limit("transition_limit", {1, m.classes, m.classes}),
                         limit("initial_limit", {m.classes}), limit("final_limit", {m.classes})};
  // Of any value: doctor numerics looks at models that hold NaN.
  const Segmenter segmenter(m);
  for (const nn::ParameterSpec& spec : segmenter.parameters())
    model.parameters.push_back(tensors.get("parameter." + spec.name, DType::kF32, spec.shape));
  tensors.check_parameters(segmenter.parameters());
}

}  // namespace

namespace {

/// Those of names, and what somebody types in their place.
bool in_names(char c) {
  return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '-' ||
         c == '_';
}

/// Whether a name is taken by something of the user's: a link to nothing, too.
bool is_there(const std::filesystem::path& path) {
  std::error_code error;
  return std::filesystem::is_symlink(path, error) || path_exists(path);
}

}  // namespace

std::filesystem::path model_path(const std::filesystem::path& given) {
  if (path_is_directory(given)) return given / "model.safetensors";
  const bool may_be_name = !given.empty() && std::ranges::all_of(given.native(), in_names);
  return may_be_name && !is_there(given) ? pretrained_file(given.string()) : given;
}

TensorFile file_of(const TrainedModel& model) {
  TensorFile file;
  file.metadata["config"] = model.config.text;
  file.metadata["model"] = json_text(sizes_of(model));
  file.metadata["recipe"] = json_text(recipe_json(model.recipe));
  const auto width = static_cast<std::int64_t>(model.normalisation.mean.size());
  file.tensors.emplace_back("normalisation.mean", Tensor::from(model.normalisation.mean, {width}));
  file.tensors.emplace_back("normalisation.deviation",
                            Tensor::from(model.normalisation.deviation, {width}));
  file.tensors.emplace_back("duration_limit", model.duration_limit);
  for (const auto& [name, limit] :
       Limits(Tensor::zeros(DType::kF32, {0}), model.order_limit).named())
    file.tensors.emplace_back(name, limit);
  const Segmenter segmenter(model.config.model);
  if (const auto& given = model.config.model.given) {
    file.metadata["encoder"] = encoder_json(given->encoder());
    for (const auto& [name, tensor] : given->constants())
      file.tensors.emplace_back("constant." + name, tensor);
  }
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    file.tensors.emplace_back("parameter." + segmenter.parameters()[i].name, model.parameters[i]);
  return file;
}

void write_model(const std::filesystem::path& path, const TrainedModel& model) {
  write_safetensors(path, file_of(model));
}

TrainedModel read_model(const std::filesystem::path& path) {
  return model_of(read_safetensors(path), path.string());
}

TrainedModel model_of(const TensorFile& file, const std::string& source) {
  const auto config = file.metadata.find("config");
  const auto sizes = file.metadata.find("model");
  if (config == file.metadata.end() || sizes == file.metadata.end())
    throw DataError(
        fmt::format("{}: no segfuse model: the metadata 'config' and 'model' are missing", source));
  const std::string place = source + ": the metadata 'model'";
  const Json parsed = parse_json(sizes->second, place);
  const JsonPlace json(parsed, place);
  if (json.at("version").integer() != kModelVersion)
    throw DataError(fmt::format("{}: the model has version {}; this program reads version {}",
                                source, json_text(json.at("version").value()), kModelVersion));
  TrainedModel model;
  try {
    model.config =
        parse_train_config(config->second, source + " (config)", json.at("overrides").texts());
    read_encoder(file, source, model.config);
    read_sizes(json, model);
    read_tensors(Tensors(file, source), model);
    model.source = source;
    if (const auto recipe = file.metadata.find("recipe"); recipe != file.metadata.end()) {
      const std::string where = source + ": the metadata 'recipe'";
      const Json kept = parse_json(recipe->second, where);
      model.recipe = recipe_from_json(JsonPlace(kept, where));
    }
  } catch (const UsageError& error) {  // sizes that do not go together
    throw DataError(fmt::format("{}: {}", source, error.what()));
  }
  return model;
}

void check_parameters(const TrainedModel& model, const std::filesystem::path& path) {
  const Segmenter segmenter(model.config.model);
  for (std::size_t i = 0; i < model.parameters.size(); ++i)
    for (const float value : model.parameters[i].span<float>())
      if (!std::isfinite(value))
        throw DataError(
            fmt::format("{}: 'parameter.{}' holds {}; its training diverged or the file is damaged",
                        path.string(), segmenter.parameters()[i].name, value));
}

}  // namespace segfuse::learn
