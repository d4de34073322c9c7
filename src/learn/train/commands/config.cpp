#include "learn/train/commands/config.h"

#include <fmt/format.h>

#include "base/os/file.h"
#include "comm/tree.h"
#include "learn/data/buckets.h"
#include "learn/train/commands/config_keys.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

/// What one key alone does not show.
void check_together(const TomlReader& root, const TrainConfig& config) {
  const TomlReader model = root.section("model");
  const ModelConfig& m = config.model;
  if (m.kernel % 2 == 0) model.refuse("kernel", "must be odd");
  if (m.stem_kernel % 2 == 0) model.refuse("stem_kernel", "must be odd");
  for (const std::int64_t dilation : m.dilations)
    if (dilation < 1) model.refuse("dilations", "must be positive");
  if (m.attention_blocks > 0 && m.width % m.attention_heads != 0)
    model.refuse("attention_heads", "must divide width");
  const TomlReader training = root.section("training");
  const TrainingPlan& p = config.training;
  if (!comm::valid_shards(p.shards)) training.refuse("shards", "must be a power of two");
  if (p.batch_size % p.shards != 0)
    training.refuse("shards",
                    fmt::format("must divide training.batch_size, which is {}", p.batch_size));
  const TomlReader evaluation = root.section("evaluation");
  if (config.tolerances.empty()) evaluation.refuse("tolerances", "must hold at least one number");
  for (const double tolerance : config.tolerances)
    if (!(tolerance >= 0)) evaluation.refuse("tolerances", "must not be negative");
}

}  // namespace

TrainConfig parse_train_config(const std::string& text, const std::string& name,
                               const std::vector<std::string>& overrides) {
  const TomlReader root = TomlReader::parse(text, name, overrides);
  TrainConfig config;
  config.text = text;
  config.overrides = overrides;
  for (const ConfigKey& key : config_keys())
    key.read(key.section.empty() ? root : root.section(key.section), config);
  check_together(root, config);
  root.refuse_unknown();
  try {
    static_cast<void>(FeatureExtractor(config.features));
  } catch (const UsageError& error) {  // settings that do not go together
    throw DataError(fmt::format("{}: {}", name, error.what()));
  }
  config.settings = root.settings();
  return config;
}

TrainConfig read_train_config(const std::filesystem::path& path,
                              const std::vector<std::string>& overrides) {
  return parse_train_config(read_file(path), path.string(), overrides);
}

namespace {

void set_text(TrainConfig& config, const std::string& name, const std::string& value) {
  for (TomlReader::Setting& setting : config.settings)
    if (setting.name() == name) setting.value = value;
}

}  // namespace

void set_data_path(TrainConfig& config, const std::string& path) {
  config.data.path = path;
  set_text(config, "data.path", TomlReader::text_of(path));
}

void set_shards(TrainConfig& config, std::int64_t shards) {
  TrainingPlan& plan = config.training;
  if (plan.batch_size % shards != 0)
    throw UsageError(fmt::format(
        "{} shards do not divide training.batch_size, which is {}; set training.batch_size to a "
        "multiple of {}, or training.shards to a power of two that divides it",
        shards, plan.batch_size, shards));
  plan.shards = shards;
  set_text(config, "training.shards", std::to_string(shards));
}

std::string settings_text(const TrainConfig& config) {
  std::string text;
  std::string section;
  for (const TomlReader::Setting& setting : config.settings) {
    if (setting.section != section) text += fmt::format("\n[{}]\n", setting.section);
    section = setting.section;
    text += fmt::format("{} = {}\n", setting.key, setting.value);
  }
  return text;
}

BucketConfig shard_batches(const TrainingPlan& plan) {
  return {plan.batch_size / plan.shards,
          plan.batch_frames == 0 ? 0 : std::max<std::int64_t>(1, plan.batch_frames / plan.shards),
          plan.seed};
}

std::string name_of(Selection selection) {
  switch (selection) {
    case Selection::kBoundaryF1: return "boundary_f1";
    case Selection::kSegmentF1: return "segment_f1";
    case Selection::kLoss: return "loss";
    case Selection::kLabelError: break;
  }
  return "label_error";
}

std::string name_of(HeadKind kind) {
  switch (kind) {
    case HeadKind::kSoftmax: return "softmax";
    case HeadKind::kLinearChain: return "linear_chain";
    case HeadKind::kSemiMarkov: break;
  }
  return "semi_markov";
}

}  // namespace segfuse::learn
