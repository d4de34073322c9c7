#include "learn/train/commands/initial_model.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <map>
#include <optional>
#include <span>

#include "base/code/sha256.h"
#include "base/console/log.h"
#include "base/os/file.h"
#include "learn/train/decode/loaded_model.h"
#include "learn/train/files/safetensors.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_models.h"
#include "segfuse/train.h"

namespace segfuse::learn {
namespace {

namespace fs = std::filesystem;

/// Settings of the features and the encoder: a model's weights mean something for these alone.
Recipe input_settings(const TrainConfig& config) {
  constexpr std::array<std::string_view, 8> kOthers = {
      "features.channel",    "model.head",         "model.boundary_scores",
      "model.durations",     "model.max_duration", "model.duration_buckets",
      "model.long_segments", "model.dropout"};
  Recipe recipe;
  for (const TomlReader::Setting& setting : config.settings)
    if ((setting.section == "features" || setting.section == "model") &&
        std::ranges::find(kOthers, setting.name()) == kOthers.end())
      recipe.emplace_back(setting.name(), setting.value);
  return recipe;
}

InitialModel read(const std::string& name) {
  const fs::path path = model_path(name);
  const std::string bytes = read_file(path);
  InitialModel init{name, model_of(parse_safetensors(bytes, path.string()), path.string()),
                    sha256_hex(bytes)};
  check_parameters(init.model, path);
  if (init.model.config.model.given)
    throw UsageError(fmt::format(
        "{}: a training cannot start from this model, because its encoder is a PyTorch module; "
        "load its weights into the module (Model.load_into) and train the module",
        name));
  return init;
}

using Ids = std::vector<std::optional<std::int32_t>>;  // the model's id of each label

/// Copies the columns of the known labels; columns of labels repeat `repeats` times.
void copy_columns(const Tensor& from, Tensor& to, const Ids& known, std::int64_t repeats) {
  const auto classes = std::ssize(known);
  const std::int64_t from_columns = from.shape().back();
  const std::int64_t to_columns = to.shape().back();
  const std::int64_t from_classes = from_columns / repeats;
  const std::int64_t rows =
      std::min(num_elements(from.shape()) / from_columns, num_elements(to.shape()) / to_columns);
  const std::span<const float> source = from.span<float>();
  const std::span<float> target = to.span<float>();
  for (std::int64_t row = 0; row < rows; ++row)
    for (std::int64_t part = 0; part < repeats; ++part)
      for (std::int64_t c = 0; c < classes; ++c)
        if (const auto& id = known[static_cast<std::size_t>(c)])
          target[static_cast<std::size_t>(row * to_columns + part * classes + c)] =
              source[static_cast<std::size_t>(row * from_columns + part * from_classes + *id)];
}

/// (1, C, C): from one known label to another.
void copy_transitions(const Tensor& from, Tensor& to, const Ids& known) {
  const std::int64_t from_classes = from.shape().back();
  const std::span<const float> source = from.span<float>();
  const std::span<float> target = to.span<float>();
  for (std::size_t a = 0; a < known.size(); ++a)
    for (std::size_t b = 0; b < known.size(); ++b)
      if (known[a] && known[b])
        target[a * known.size() + b] =
            source[static_cast<std::size_t>(*known[a] * from_classes + *known[b])];
}

/// Whether the parameters of durations mean the same in both.
bool same_durations(const ModelConfig& a, const ModelConfig& b) {
  if (a.durations != b.durations) return false;
  if (a.durations != semicrf::DurationFamily::kBuckets) return true;
  return a.max_duration == b.max_duration && a.duration_buckets == b.duration_buckets;
}

bool is_scores_of_labels(const std::string& name) {
  return name.starts_with("emission.") || name.starts_with("start.") || name.starts_with("end.");
}

Ids known_labels(const InitialModel& init, const Alphabet& labels) {
  Ids known;
  for (const std::string& label : labels.labels()) known.push_back(init.model.labels.find(label));
  return known;
}

}  // namespace

std::shared_ptr<const InitialModel> read_initial_model(const TrainConfig& config) {
  if (config.training.init.empty()) return nullptr;
  auto init = std::make_shared<InitialModel>(read(config.training.init));
  const std::string different =
      differences(input_settings(init->model.config), input_settings(config));
  if (!different.empty())
    throw UsageError(fmt::format(
        "{}: a training cannot start from this model, because its features or encoder differ "
        "(then: the model, now: this training: {}); use the model's features and encoder",
        init->name, different));
  return init;
}

std::vector<std::string> overrides_of(const TrainOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  if (!options.init.empty())
    overrides.push_back("training.init=" + TomlReader::text_of(options.init.string()));
  return overrides;
}

void follow_initial_model(TrainOptions& options) {
  const TrainConfig config =
      parse_train_config(options.config_text, "the configuration", overrides_of(options));
  if (config.training.init.empty()) return;
  const TrainConfig planned = parse_train_config(options.config_text, "the configuration");
  const TrainConfig of_model = read(config.training.init).model.config;
  std::vector<std::string> settings;
  for (const auto& [name, value] : input_settings(of_model))
    settings.push_back(fmt::format("{}={}", name, value));
  const double ratio = planned.features.hop_ms / of_model.features.hop_ms;
  const auto scale = [&](const char* name, std::int64_t frames) {
    if (frames == 0 || ratio == 1) return;
    const double same_time = std::ceil(static_cast<double>(frames) * ratio);
    settings.push_back(fmt::format("{}={}", name, std::llround(same_time)));
  };
  scale("model.max_duration", planned.max_duration);
  scale("training.fixed_length", planned.training.fixed_length);
  options.overrides.insert(options.overrides.begin(), settings.begin(), settings.end());
  options.introduction += fmt::format(
      "{}  {:<13} {}: its features (a frame every {} ms) and its encoder take the place of those "
      "above",
      options.introduction.empty() || options.introduction.ends_with('\n') ? "" : "\n", "init",
      config.training.init, of_model.features.hop_ms);
}

void tell_of_uneven_start(const TrainConfig& config) {
  if (config.training.init.empty()) return;
  log(LogLevel::kWarning,
      "all compared systems start from the encoder of {}, which was trained with one head, so the "
      "comparison favours that head; leave --init out for an unbiased comparison",
      config.training.init);
}

void keep_initial_model(const TrainConfig& config, const fs::path& out) {
  if (config.training.init.empty()) return;
  const fs::path init = fs::absolute(config.training.init).lexically_normal();
  if (!fs::exists(init) && init == (fs::absolute(out) / "").lexically_normal().parent_path())
    throw UsageError(
        fmt::format("--out {}: the training starts from the pretrained model of this name, and a "
                    "folder of that name would hide the model; choose another --out",
                    out.string()));
  const fs::path model = model_path(config.training.init);
  for (const char* name : {"model.safetensors", "model.previous.safetensors"}) {
    std::error_code failure;
    if (fs::equivalent(model, out / name, failure) && !failure)
      throw UsageError(fmt::format(
          "{}: the training starts from this model and would replace it; choose another --out",
          model.string()));
  }
}

std::int64_t labels_known(const InitialModel& init, const Alphabet& labels) {
  return std::ranges::count_if(labels.labels(), [&](const std::string& label) {
    return init.model.labels.find(label).has_value();
  });
}

std::string labels_known_text(const InitialModel& init, const Alphabet& labels) {
  constexpr std::size_t kShown = 10;
  std::vector<std::string> others;
  for (const std::string& label : labels.labels())
    if (!init.model.labels.find(label)) others.push_back(label);
  std::string text = fmt::format("{} of {} labels known from {}", labels_known(init, labels),
                                 labels.size(), init.name);
  if (others.empty()) return text;
  const std::size_t shown = std::min(kShown, others.size());
  text += fmt::format(
      " (new: {}",
      fmt::join(others.begin(), others.begin() + static_cast<std::ptrdiff_t>(shown), ", "));
  return text + (shown < others.size() ? fmt::format(" and {} more)", others.size() - shown) : ")");
}

void copy_initial_model(const InitialModel& init, const Segmenter& segmenter,
                        const Alphabet& labels, std::vector<Tensor>& parameters) {
  const Ids known = known_labels(init, labels);
  const Segmenter of_model(init.model.config.model);
  std::map<std::string, const Tensor*> given;
  for (std::size_t i = 0; i < of_model.parameters().size(); ++i)
    given[of_model.parameters()[i].name] = &init.model.parameters[i];
  const bool same_head = init.model.config.model.head == segmenter.config().head;
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const nn::ParameterSpec& spec = segmenter.parameters()[i];
    const auto found = given.find(spec.name);
    if (found == given.end()) continue;
    const Tensor& from = *found->second;
    if (is_scores_of_labels(spec.name)) {
      copy_columns(from, parameters[i], known, segmenter.config().subsample);
    } else if (is_crf(spec)) {
      if (!same_head) continue;
      if (spec.name == "crf.duration" &&
          !same_durations(init.model.config.model, segmenter.config()))
        continue;
      if (spec.name == "crf.transition")
        copy_transitions(from, parameters[i], known);
      else
        copy_columns(from, parameters[i], known, 1);
    } else if (from.shape() == spec.shape) {
      parameters[i] = from.clone();
    } else {
      throw DataError(fmt::format("{}: 'parameter.{}' is {}; this training needs {}", init.name,
                                  spec.name, to_string(from.shape()), to_string(spec.shape)));
    }
  }
}

}  // namespace segfuse::learn
