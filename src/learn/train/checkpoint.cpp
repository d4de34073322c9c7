#include "learn/train/checkpoint.h"

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "learn/train/safetensors.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

using Json = nlohmann::ordered_json;
constexpr int kVersion = 1;

struct Group {
  const char* name;
  std::vector<Tensor> TrainingState::* tensors;
};
constexpr Group kGroups[] = {{"parameter.", &TrainingState::parameters},
                             {"m.", &TrainingState::first_moment},
                             {"v.", &TrainingState::second_moment},
                             {"mean.", &TrainingState::average},
                             {"best.", &TrainingState::best}};

/// JSON has no NaN; null stands for it.
Json number(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }
double number(const Json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

Json to_json(const TrainingState& s, std::uint64_t fingerprint) {
  Json history = Json::array();
  for (const EpochRecord& r : s.history)
    history.push_back({r.epoch, number(r.train_loss), number(r.dev_loss), number(r.dev_error),
                       number(r.learning_rate), number(r.crf_largest), number(r.other_largest)});
  return {{"version", kVersion},
          {"fingerprint", std::to_string(fingerprint)},
          {"step", s.step},
          {"epoch", s.epoch},
          {"batch", s.batch},
          {"epoch_loss", number(s.epoch_loss)},
          {"epoch_segments", number(s.epoch_segments)},
          {"best_error", number(s.best_error)},
          {"best_epoch", s.best_epoch},
          {"averaged", !s.average.empty()},
          {"history", history}};
}

void from_json(const Json& json, TrainingState& s) {
  s.step = json.at("step").get<std::int64_t>();
  s.epoch = json.at("epoch").get<std::int64_t>();
  s.batch = json.at("batch").get<std::int64_t>();
  s.epoch_loss = number(json.at("epoch_loss"));
  s.epoch_segments = number(json.at("epoch_segments"));
  s.best_epoch = json.at("best_epoch").get<std::int64_t>();
  s.best_error =
      s.best_epoch > 0 ? number(json.at("best_error")) : std::numeric_limits<double>::infinity();
  for (const Json& row : json.at("history")) {
    auto later = [&](std::size_t i) {  // checkpoints from before the magnitudes were kept
      return i < row.size() ? number(row.at(i)) : std::numeric_limits<double>::quiet_NaN();
    };
    s.history.push_back({row.at(0).get<std::int64_t>(), number(row.at(1)), number(row.at(2)),
                         number(row.at(3)), number(row.at(4)), later(5), later(6)});
  }
}

}  // namespace

void write_checkpoint(const std::filesystem::path& path, const TrainingState& state,
                      const std::vector<nn::ParameterSpec>& specs, std::uint64_t fingerprint) {
  TensorFile file;
  file.metadata["state"] = to_json(state, fingerprint).dump();
  for (const Group& group : kGroups)
    for (std::size_t i = 0; i < (state.*group.tensors).size(); ++i)
      file.tensors.emplace_back(group.name + specs[i].name, (state.*group.tensors)[i]);
  write_safetensors(path, file);
}

TrainingState read_checkpoint(const std::filesystem::path& path,
                              const std::vector<nn::ParameterSpec>& specs,
                              std::uint64_t fingerprint) {
  const std::string source = path.string();
  const TensorFile file = read_safetensors(path);
  const auto text = file.metadata.find("state");
  if (text == file.metadata.end())
    throw DataError("{}: no segfuse checkpoint: the metadata 'state' is missing", source);
  TrainingState state;
  bool averaged = false;
  try {
    const Json json = Json::parse(text->second);
    if (json.at("version") != kVersion)
      throw DataError("{}: the checkpoint has version {}; this program reads version {}", source,
                      json.at("version").dump(), kVersion);
    if (json.at("fingerprint") != std::to_string(fingerprint))
      throw UsageError(
          "{}: the checkpoint belongs to a run with another configuration or other data; "
          "remove it or train without --resume",
          source);
    from_json(json, state);
    averaged = json.at("averaged").get<bool>();
  } catch (const Json::exception& error) {
    throw DataError("{}: the metadata 'state' cannot be read: {}", source, error.what());
  }
  for (const Group& group : kGroups) {
    if (group.tensors == &TrainingState::average && !averaged) continue;
    for (const nn::ParameterSpec& spec : specs) {
      const Tensor& tensor = file.at(group.name + spec.name, source);
      if (tensor.shape() != spec.shape || tensor.dtype() != DType::kF32)
        throw DataError("{}: '{}{}' has the shape {}; the model has {}", source, group.name,
                        spec.name, to_string(tensor.shape()), to_string(spec.shape));
      (state.*group.tensors).push_back(tensor);
    }
  }
  return state;
}

}  // namespace segfuse::learn
