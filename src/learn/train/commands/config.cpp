#include "learn/train/commands/config.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "base/os/file.h"
#include "base/text.h"
#include "comm/tree.h"
#include "learn/data/buckets.h"
#include "learn/data/features/augmentation.h"
#include "learn/model/given_encoder.h"
#include "learn/train/commands/config_keys.h"
#include "segfuse/error.h"
#include "segfuse/semicrf_models.h"

namespace segfuse::learn {
namespace {

void check_grammar(const TomlReader& section, const TrainConfig& config) {
  const Grammar& g = config.grammar;
  const bool semi = config.model.head == HeadKind::kSemiMarkov;
  for (const auto& [key, durations] :
       {std::pair("shortest", &g.shortest), {"longest", &g.longest}}) {
    if (!durations->empty() && !semi)
      section.refuse(key, "needs model.head = \"semi_markov\"; the other heads have no durations");
    for (const auto& [label, seconds] : *durations)
      if (!(seconds > 0)) section.section(key).refuse(label, "must be above 0 seconds");
  }
  const bool cut = config.training.fixed_length > 0;
  const auto refuse_order = [&](const char* key) {
    if (config.model.head == HeadKind::kSoftmax)
      section.refuse(key, "needs a CRF; model.head = \"softmax\" labels each frame independently");
  };
  if (!g.next.empty()) refuse_order("next");
  for (const auto& [key, labels] : {std::pair("first", &g.first), {"last", &g.last}})
    if (!labels->empty()) refuse_order(key);
  for (const auto& [key, given] : {std::pair("shortest", !g.shortest.empty()),
                                   {"first", !g.first.empty()},
                                   {"last", !g.last.empty()}})
    if (cut && given) section.refuse(key, "needs whole recordings; set training.fixed_length to 0");
}

/// Some changes mean nothing to some features, and masks need a number and a size.
void check_augmentation(const TomlReader& section, const TrainConfig& config) {
  const Augmentation& a = config.augmentation;
  const FeatureConfig& f = config.features;
  for (const auto& [key, value] : {std::pair("frequency_masks", a.frequency_masks),
                                   {"frequency_mask_bands", a.frequency_mask_bands},
                                   {"transpose_bands", a.transpose_bands}})
    if (value > 0 && !data::has_bands(f.kind))
      section.refuse(
          key,
          fmt::format("needs features with bands, as features.kind = \"log_mel\"; found \"{}\"",
                      name_of(f.kind)));
  const auto need_both = [&](const char* number, bool has_number, const char* size, bool has_size) {
    if (has_number != has_size)
      section.refuse(has_number ? size : number,
                     fmt::format("must be above 0, as {} is", has_number ? number : size));
  };
  need_both("time_masks", a.time_masks > 0, "time_mask_ms", a.time_mask_ms > 0);
  need_both("frequency_masks", a.frequency_masks > 0, "frequency_mask_bands",
            a.frequency_mask_bands > 0);
  if (a.time_masks > 0 && a.time_mask_ms < f.hop_ms)
    section.refuse("time_mask_ms",
                   fmt::format("is {}, less than a frame, which has {:.4g} ms; make it longer",
                               a.time_mask_ms, f.hop_ms));
  for (const auto& [key, bands] : {std::pair("frequency_mask_bands", a.frequency_mask_bands),
                                   {"transpose_bands", a.transpose_bands}})
    if (bands > 0 && bands >= f.n_mels)
      section.refuse(key, fmt::format("must be less than features.n_mels, which is {}", f.n_mels));
  if (a.gain_db > 0 && f.normalise_recording)
    section.refuse("gain_db",
                   "has no effect, because features.normalise_recording removes each recording's "
                   "level; leave one of them out");
}

/// What one key alone does not show.
void check_together(const TomlReader& root, const TrainConfig& config) {
  const DataSource& d = config.data;
  const TomlReader data = root.section("data");
  if (d.folds == 1) data.refuse("folds", "must be 0 or at least 2: one fold is the test set");
  if (d.folds > 0 && d.test_fold > d.folds)
    data.refuse("test_fold", fmt::format("must be one of the {} folds", d.folds));
  if (!(d.train_share > 0)) data.refuse("train_share", "must be above 0");
  const TomlReader model = root.section("model");
  const ModelConfig& m = config.model;
  if (m.kernel % 2 == 0) model.refuse("kernel", "must be odd");
  if (m.stem_kernel % 2 == 0) model.refuse("stem_kernel", "must be odd");
  for (const std::int64_t dilation : m.dilations)
    if (dilation < 1) model.refuse("dilations", "must be positive");
  if (m.attention_blocks > 0 && m.width % m.attention_heads != 0)
    model.refuse("attention_heads", "must divide width");
  if (m.durations != semicrf::DurationFamily::kTable && m.head != HeadKind::kSemiMarkov)
    model.refuse("durations",
                 "needs model.head = \"semi_markov\"; the other heads have no durations");
  const TomlReader training = root.section("training");
  const TrainingPlan& p = config.training;
  if (!comm::valid_shards(p.shards)) training.refuse("shards", "must be a power of two");
  if (p.batch_size % p.shards != 0)
    training.refuse("shards",
                    fmt::format("must divide training.batch_size, which is {}", p.batch_size));
  check_augmentation(root.section("augmentation"), config);
  check_grammar(root.section("grammar"), config);
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

void set_evaluation(TrainConfig& config, const std::vector<std::string>& overrides) {
  for (const std::string& override : overrides)
    if (!override.starts_with("evaluation."))
      throw UsageError(
          fmt::format("'{}' is not a setting of [evaluation]; all other settings are those of the "
                      "model's training",
                      override));
  const TrainConfig given = parse_train_config("", "the options", overrides);
  for (const TomlReader::Setting& setting : given.settings) {
    const std::string name = setting.name();
    const bool is_given = std::ranges::any_of(overrides, [&](const std::string& override) {
      return trim(std::string_view(override).substr(0, override.find('='))) == name;
    });
    if (!is_given) continue;
    std::erase_if(config.settings, [&](const auto& former) { return former.name() == name; });
    config.settings.push_back(setting);
    if (setting.key == "tolerances") config.tolerances = given.tolerances;
    if (setting.key == "edge_tolerance") config.edge_tolerance = given.edge_tolerance;
    if (setting.key == "background") config.background = given.background;
  }
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

namespace {

/// Keys of [model] that an encoder leaves to the configuration.
bool is_of_head(const std::string& key) {
  constexpr std::array kHead = {"head",         "boundary_scores",  "durations",
                                "max_duration", "duration_buckets", "long_segments"};
  return std::ranges::find(kHead, key) != kHead.end();
}

}  // namespace

void prepare_for_encoder(TrainConfig& config) {
  for (const std::string& override : config.overrides) {
    if (!override.starts_with("model.")) continue;
    const std::string key = override.substr(6, override.find('=') - 6);
    if (!is_of_head(key))
      throw UsageError(fmt::format(
          "model.{} describes the built-in encoder, which your encoder replaces; leave it out",
          key));
  }
  TrainingPlan& plan = config.training;
  if (plan.batch_frames > 0)
    throw UsageError(
        fmt::format("training.batch_frames is {}; your own encoder takes one recording at a time, "
                    "so leave it out, and lower training.fixed_length if memory is short",
                    plan.batch_frames));
  if (!comm::valid_shards(plan.batch_size))
    throw UsageError(fmt::format(
        "training.batch_size is {}; with your own encoder, expected a power of two, at most {}",
        plan.batch_size, comm::kMaxShards));
  if (!plan.chooses_shards && plan.shards != plan.batch_size)
    throw UsageError(fmt::format(
        "training.shards is {}; your own encoder takes one recording at a time, so leave it out",
        plan.shards));
  plan.chooses_shards = false;
  set_shards(config, plan.batch_size);
}

void set_encoder(TrainConfig& config, std::shared_ptr<const GivenEncoder> encoder) {
  config.model.subsample = encoder->encoder().stride;
  config.model.given = std::move(encoder);
  std::erase_if(config.settings, [](const TomlReader::Setting& setting) {
    return setting.section == "model" && !is_of_head(setting.key);
  });
}

void set_encoder(TrainConfig& config, Encoder encoder) {
  set_encoder(config, std::make_shared<const GivenEncoder>(std::move(encoder)));
}

bool is_ordered(const TrainConfig& config, HeadKind head) {
  return head != HeadKind::kSoftmax &&
         config.grammar.orders(config.join_long && head == HeadKind::kSemiMarkov);
}

namespace {

/// A key as TOML has it: labels may hold anything.
std::string key_text(const std::string& key) {
  const bool bare = !key.empty() && std::ranges::all_of(key, [](unsigned char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
           c == '-';
  });
  return bare ? key : TomlReader::text_of(key);
}

}  // namespace

std::string settings_text(const TrainConfig& config) {
  std::string text;
  std::string section;
  for (const TomlReader::Setting& setting : config.settings) {
    if (setting.section != section) text += fmt::format("\n[{}]\n", setting.section);
    section = setting.section;
    text += fmt::format("{} = {}\n", key_text(setting.key), setting.value);
  }
  return text;
}

BucketConfig shard_batches(const TrainingPlan& plan) {
  return {plan.batch_size / plan.shards,
          plan.batch_frames == 0 ? 0 : std::max<std::int64_t>(1, plan.batch_frames / plan.shards),
          plan.seed};
}

bool lower_is_better(Selection selection) {
  return selection == Selection::kLabelError || selection == Selection::kLoss;
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

std::string name_of(Precision precision) {
  switch (precision) {
    case Precision::kTF32: return "tf32";
    case Precision::kBFloat16: return "bf16";
    case Precision::kFloat32: break;
  }
  return "float32";
}

}  // namespace segfuse::learn
