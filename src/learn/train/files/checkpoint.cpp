#include "learn/train/files/checkpoint.h"

#include <fmt/core.h>

#include <cmath>
#include <limits>

#include "base/json/json.h"
#include "learn/train/files/safetensors.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr int kCheckpointVersion = 2;  // 1 had a hash instead of the recipe
constexpr std::int64_t kMaxSteps = std::int64_t{1} << 53;

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
double number(const JsonPlace& place) {
  return place.value().is_null() ? std::numeric_limits<double>::quiet_NaN() : place.number();
}

Json to_json(const TrainingState& s, const Recipe& recipe) {
  Json history = Json::array();
  for (const EpochRecord& r : s.history)
    history.push_back({r.epoch, number(r.train_loss), number(r.dev_loss), number(r.dev_error),
                       number(r.learning_rate), number(r.crf_largest), number(r.other_largest),
                       number(r.dev_score)});
  return {{"version", kCheckpointVersion},
          {"recipe", recipe_json(recipe)},
          {"step", s.step},
          {"epoch", s.epoch},
          {"batch", s.batch},
          {"epoch_loss", number(s.epoch_loss)},
          {"epoch_segments", number(s.epoch_segments)},
          {"best_score", number(s.best_score)},
          {"best_epoch", s.best_epoch},
          {"averaged", !s.average.empty()},
          {"history", history}};
}

EpochRecord read_epoch(const JsonPlace& row) {
  std::vector<double> values;
  row.for_each([&](const JsonPlace& value) { values.push_back(number(value)); });
  if (values.size() != 8) row.refuse("the 8 numbers of an epoch");
  if (!(values[0] >= 1 && values[0] <= kMaxSteps)) row.refuse("an epoch from 1 on first");
  return {static_cast<std::int64_t>(values[0]),
          values[1],
          values[2],
          values[3],
          values[4],
          values[5],
          values[6],
          values[7]};
}

void from_json(const JsonPlace& json, TrainingState& s) {
  const auto count = [&](std::string_view key) { return json.at(key).integer(0, kMaxSteps); };
  s.step = count("step");
  s.epoch = count("epoch");
  s.batch = count("batch");
  s.epoch_loss = number(json.at("epoch_loss"));
  s.epoch_segments = number(json.at("epoch_segments"));
  s.best_epoch = count("best_epoch");
  s.best_score = number(json.at("best_score"));
  json.at("history").for_each([&](const JsonPlace& row) { s.history.push_back(read_epoch(row)); });
  if (s.best_epoch > s.epoch || static_cast<std::int64_t>(s.history.size()) != s.epoch)
    json.at("epoch").refuse("as many epochs as the history has, the best one among them");
}

}  // namespace

TensorFile file_of(const TrainingState& state, const std::vector<nn::ParameterSpec>& specs,
                   const Recipe& recipe) {
  TensorFile file;
  file.metadata["state"] = json_text(to_json(state, recipe));
  for (const Group& group : kGroups)
    for (std::size_t i = 0; i < (state.*group.tensors).size(); ++i)
      file.tensors.emplace_back(group.name + specs[i].name, (state.*group.tensors)[i]);
  return file;
}

void write_checkpoint(const std::filesystem::path& path, const TrainingState& state,
                      const std::vector<nn::ParameterSpec>& specs, const Recipe& recipe) {
  write_safetensors(path, file_of(state, specs, recipe));
}

TrainingState read_checkpoint(const std::filesystem::path& path,
                              const std::vector<nn::ParameterSpec>& specs, const Recipe& recipe) {
  return state_of(read_safetensors(path), path.string(), specs, recipe);
}

namespace {

/// The metadata of a checkpoint that is one; `use` gets it with its place.
template <class Use>
auto with_state(const std::map<std::string, std::string>& metadata, const std::string& source,
                const Use& use) {
  const auto text = metadata.find("state");
  if (text == metadata.end())
    throw DataError(
        fmt::format("{}: no segfuse checkpoint: the metadata 'state' is missing", source));
  const std::string place = source + ": the metadata 'state'";
  const Json parsed = parse_json(text->second, place);
  const JsonPlace json(parsed, place);
  if (json.at("version").integer() != kCheckpointVersion)
    throw DataError(fmt::format("{}: the checkpoint has version {}; this program reads version {}",
                                source, json_text(json.at("version").value()), kCheckpointVersion));
  return use(json);
}

}  // namespace

Recipe recipe_of_checkpoint(const std::filesystem::path& path) {
  return with_state(read_safetensors(path).metadata, path.string(),
                    [](const JsonPlace& json) { return recipe_from_json(json.at("recipe")); });
}

std::int64_t steps_of_checkpoint(const std::filesystem::path& path) {
  return with_state(read_safetensors_metadata(path), path.string(),
                    [](const JsonPlace& json) { return json.at("step").integer(0, kMaxSteps); });
}

TrainingState state_of(const TensorFile& file, const std::string& source,
                       const std::vector<nn::ParameterSpec>& specs, const Recipe& recipe) {
  return with_state(file.metadata, source, [&](const JsonPlace& json) {
    const std::string different = differences(recipe_from_json(json.at("recipe")), recipe);
    if (!different.empty())
      throw UsageError(fmt::format(
          "{}: the checkpoint belongs to a run with another configuration or other data ({}); use "
          "those of that run, or choose another --out{}",
          source, different,
          different.find("training.epochs: ") == different.npos
              ? ""
              : "; the learning rate of each step depends on the number of epochs, so a longer "
                "training is a new run, which can start from this one's model (--init)"));
    TrainingState state;
    from_json(json, state);
    const bool averaged = json.at("averaged").boolean();
    for (const Group& group : kGroups) {
      if (group.tensors == &TrainingState::average && !averaged) continue;
      for (const nn::ParameterSpec& spec : specs) {
        const Tensor& tensor = file.at(group.name + spec.name, source);
        if (tensor.shape() != spec.shape || tensor.dtype() != DType::kF32)
          throw DataError(fmt::format("{}: '{}{}' has the shape {}; the model has {}", source,
                                      group.name, spec.name, to_string(tensor.shape()),
                                      to_string(spec.shape)));
        for (const float value : tensor.span<float>())
          if (!std::isfinite(value))  // a step that made it would have ended the training
            throw DataError(fmt::format("{}: '{}{}' holds {}; the file is damaged", source,
                                        group.name, spec.name, value));
        (state.*group.tensors).push_back(tensor);
      }
    }
    return state;
  });
}

}  // namespace segfuse::learn
