#include "learn/train/files/recipe.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/code/fnv.h"
#include "base/os/file.h"
#include "learn/model/given_encoder.h"
#include "segfuse/semicrf_models.h"

namespace segfuse::learn {
namespace {

/// A hash over bytes, as text.
class Hash {
 public:
  void add(const void* data, std::size_t bytes) {
    hash_ = fnv1a({static_cast<const char*>(data), bytes}, hash_);
  }
  void add(std::int64_t value) { add(&value, sizeof value); }
  void add(const std::string& text) {
    add(static_cast<std::int64_t>(text.size()));
    add(text.data(), text.size());
  }
  std::string text() const { return fmt::format("{:016x}", hash_); }

 private:
  std::uint64_t hash_ = kFnvBasis;
};

}  // namespace

namespace {

/// Where something lies does not count, nor the background and the edge tolerance, which take
/// no part in a training. What is not in use is not named: runs from before there was such a
/// setting go on.
bool is_named(const std::string& setting, const TrainConfig& config) {
  if (setting.starts_with("augmentation.")) return config.augmentation.any();
  if (setting == "title" || setting == "data.path" || setting == "training.init") return false;
  if (setting == "evaluation.edge_tolerance" || setting == "evaluation.background") return false;
  if (setting == "training.shards") return config.training.shards > 1;
  if (setting == "training.precision") return config.training.precision != Precision::kFloat32;
  if (setting == "model.causal") return config.model.causal;
  const semicrf::DurationFamily durations = config.model.durations;
  if (setting == "model.durations") return durations != semicrf::DurationFamily::kTable;
  if (setting == "model.duration_buckets") return durations == semicrf::DurationFamily::kBuckets;
  if (setting == "data.group") return !config.data.group.empty();
  if (setting == "data.folds" || setting == "data.test_fold") return config.data.folds > 0;
  return setting != "data.train_share" || config.data.train_share < 1;
}

}  // namespace

Recipe recipe_of(const TrainConfig& config, const Alphabet& labels) {
  Recipe recipe;
  for (const TomlReader::Setting& setting : config.settings)
    if (is_named(setting.name(), config))
      recipe.emplace_back(setting.name(), setting.name() == "model.head"
                                              ? name_of(config.model.head)
                                              : setting.value);
  for (std::int64_t i = 0; i < labels.size(); ++i)
    recipe.emplace_back(fmt::format("label {}", i), labels.label(i));
  if (config.model.given)
    recipe.emplace_back("programs and constants of the encoder", config.model.given->hash());
  if (!config.data.metric_fold.empty()) {
    Hash content;
    content.add(read_file(config.data.metric_fold));
    recipe.emplace_back("content of data.metric_fold", content.text());
  }
  return recipe;
}

void add_data(Recipe& recipe, const std::string& set, const std::vector<Sequence>& sequences) {
  Hash ids, features, labels;
  for (const Sequence& sequence : sequences) {
    ids.add(sequence.id);
    features.add(sequence.frames());
    features.add(sequence.features.data(), sequence.features.bytes());
    labels.add(static_cast<std::int64_t>(sequence.segments.size()));
    for (const FrameSegment& s : sequence.segments)
      for (const std::int64_t value : {s.start, s.duration, std::int64_t{s.label}})
        labels.add(value);
  }
  recipe.emplace_back(fmt::format("number of {} recordings", set),
                      std::to_string(sequences.size()));
  recipe.emplace_back(fmt::format("ids of the {} recordings", set), ids.text());
  recipe.emplace_back(fmt::format("features of the {} recordings", set), features.text());
  recipe.emplace_back(fmt::format("gold segments of the {} recordings", set), labels.text());
}

std::string differences(const Recipe& then, const Recipe& now) {
  constexpr std::size_t kShown = 4;
  const auto value_in = [](const Recipe& recipe, const std::string& name) -> std::string {
    const auto found = std::ranges::find(recipe, name, &Recipe::value_type::first);
    return found == recipe.end() ? "nothing" : found->second;
  };
  std::vector<std::string> found;
  for (const Recipe* recipe : {&now, &then})
    for (const auto& [name, value] : *recipe) {
      const std::string former = value_in(then, name);
      const std::string current = value_in(now, name);
      const std::string text = fmt::format("{}: {} then, {} now", name, former, current);
      if (former != current && std::ranges::find(found, text) == found.end()) found.push_back(text);
    }
  std::string text;
  for (std::size_t i = 0; i < std::min(kShown, found.size()); ++i)
    text += (i == 0 ? "" : "; ") + found[i];
  if (found.size() > kShown) text += fmt::format("; and {} more", found.size() - kShown);
  return text;
}

Json recipe_json(const Recipe& recipe) {
  Json json = Json::object();
  for (const auto& [name, value] : recipe) json[name] = value;
  return json;
}

Recipe recipe_from_json(const JsonPlace& json) {
  Recipe recipe;
  json.for_each_member([&](const std::string& name, const JsonPlace& value) {
    recipe.emplace_back(name, value.text());
  });
  return recipe;
}

}  // namespace segfuse::learn
