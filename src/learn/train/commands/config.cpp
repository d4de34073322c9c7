#include "learn/train/commands/config.h"

#include <fmt/format.h>

#include "base/os/file.h"
#include "comm/tree.h"
#include "learn/data/buckets.h"
#include "segfuse/error.h"

namespace segfuse::learn {
namespace {

constexpr double kHuge = 1e9;
constexpr Selection kSelections[] = {Selection::kLabelError, Selection::kBoundaryF1,
                                     Selection::kSegmentF1, Selection::kLoss};

DataSource read_data(const TomlReader& t) {
  DataSource data;
  data.path = t.string("path", "");
  data.tier = t.string("tier", "");
  if (t.has("fill_label")) data.fill_label = t.string("fill_label");
  data.fold = t.string("fold", "");
  data.metric_fold = t.string("metric_fold", "");
  data.metric_merge = t.boolean("metric_merge", data.metric_merge);
  return data;
}

FeatureConfig read_features(const TomlReader& t) {
  FeatureConfig f;
  auto whole = [&](const char* key, int fallback, int least, int most) {
    return static_cast<int>(t.integer(key, fallback, least, most));
  };
  f.kind =
      feature_kind_from_name(t.choice("kind", "log_mel", {"log_mel", "mfcc", "raw", "values"}));
  f.sample_rate = whole("sample_rate", f.sample_rate, 1, 10'000'000);
  f.window_ms = t.number("window_ms", f.window_ms, 1e-3, kHuge);
  f.hop_ms = t.number("hop_ms", f.hop_ms, 1e-3, kHuge);
  if (f.kind == FeatureKind::kValues) {
    f.frame_rate = t.number("frame_rate", 0, 0, kHuge);
    if (!(f.frame_rate > 0))
      t.refuse("frame_rate", "must say how many rows of values are a second");
    if (t.has("hop_ms")) t.refuse("hop_ms", "is 1000 / frame_rate for kind = \"values\"");
    f.hop_ms = 1000 / f.frame_rate;
  }
  f.n_mels = whole("n_mels", f.n_mels, 1, 1000);
  f.n_mfcc = whole("n_mfcc", f.n_mfcc, 1, 1000);
  f.fmin = t.number("fmin", f.fmin, 0, kHuge);
  f.fmax = t.number("fmax", f.fmax, 0, kHuge);
  f.preemphasis = t.number("preemphasis", f.preemphasis, 0, 1);
  f.lifter = t.number("lifter", f.lifter, 0, kHuge);
  f.raw_bins = whole("raw_bins", f.raw_bins, 0, 1'000'000);
  f.deltas = whole("deltas", f.deltas, 0, 2);
  f.normalise_recording = t.boolean("normalise_recording", f.normalise_recording);
  if (t.holds_string("channel"))
    f.channel = audio_channel(t.string("channel"), t.where("channel") + ": 'features.channel'");
  else if (t.has("channel"))
    f.channel = whole("channel", 0, 0, 1023);
  return f;
}

ModelConfig read_model(const TomlReader& t) {
  ModelConfig m;
  m.width = t.integer("width", m.width, 1, 100'000);
  m.stem_kernel = t.integer("stem_kernel", m.stem_kernel, 1, 1001);
  m.kernel = t.integer("kernel", m.kernel, 1, 1001);
  if (m.kernel % 2 == 0) t.refuse("kernel", "must be odd");
  if (m.stem_kernel % 2 == 0) t.refuse("stem_kernel", "must be odd");
  m.dilations = t.integers("dilations", m.dilations);
  for (const std::int64_t dilation : m.dilations)
    if (dilation < 1) t.refuse("dilations", "must be positive");
  m.attention_blocks = t.integer("attention_blocks", m.attention_blocks, 0, 1000);
  m.attention_heads = t.integer("attention_heads", m.attention_heads, 1, 1000);
  if (m.attention_blocks > 0 && m.width % m.attention_heads != 0)
    t.refuse("attention_heads", "must divide width");
  m.subsample = t.integer("subsample", m.subsample, 1, 64);
  m.dropout = t.number("dropout", m.dropout, 0, 0.99);
  const std::string head =
      t.choice("head", "semi_markov", {"semi_markov", "linear_chain", "softmax"});
  m.head = head == "softmax"        ? HeadKind::kSoftmax
           : head == "linear_chain" ? HeadKind::kLinearChain
                                    : HeadKind::kSemiMarkov;
  m.boundary_scores = t.boolean("boundary_scores", m.boundary_scores);
  return m;
}

TrainingPlan read_training(const TomlReader& t) {
  TrainingPlan p;
  p.epochs = t.integer("epochs", p.epochs, 1, 1'000'000);
  p.batch_size = t.integer("batch_size", p.batch_size, 1, 1'000'000);
  p.batch_frames = t.integer("batch_frames", p.batch_frames, 0);
  p.chooses_shards = !t.has("shards");
  p.shards = t.integer("shards", p.shards, 1, comm::kMostShards);
  if (!comm::valid_shards(p.shards)) t.refuse("shards", "must be a power of two");
  if (p.batch_size % p.shards != 0)
    t.refuse("shards", fmt::format("must divide training.batch_size, which is {}", p.batch_size));
  p.learning_rate = t.number("learning_rate", p.learning_rate, 0, kHuge);
  p.warmup = t.number("warmup", p.warmup, 0, 1);
  p.clip = t.number("clip", p.clip, 0, kHuge);
  p.crf_reg = t.number("crf_reg", p.crf_reg, 0, kHuge);
  p.fixed_length = t.integer("fixed_length", p.fixed_length, 0, 1'000'000'000);
  p.patience = t.integer("patience", p.patience, 0);
  p.select_every = t.integer("select_every", p.select_every, 1, 1'000'000);
  std::vector<std::string> criteria;
  for (const Selection selection : kSelections) criteria.push_back(name_of(selection));
  const std::string chosen = t.choice("select_by", name_of(p.select_by), criteria);
  for (const Selection selection : kSelections)
    if (name_of(selection) == chosen) p.select_by = selection;
  p.seed = static_cast<std::uint64_t>(t.integer("seed", 1, 0));
  p.adamw.weight_decay = t.number("weight_decay", p.adamw.weight_decay, 0, kHuge);
  p.adamw.beta1 = t.number("beta1", p.adamw.beta1, 0, 0.999999);
  p.adamw.beta2 = t.number("beta2", p.adamw.beta2, 0, 0.999999);
  p.adamw.average = t.number("average", p.adamw.average, 0, 0.999999);
  return p;
}

}  // namespace

TrainConfig parse_train_config(const std::string& text, const std::string& name,
                               const std::vector<std::string>& overrides) {
  const TomlReader root = TomlReader::parse(text, name, overrides);
  TrainConfig config;
  config.text = text;
  config.overrides = overrides;
  config.title = root.string("title", "");
  config.data = read_data(root.section("data"));
  config.features = read_features(root.section("features"));
  const TomlReader model = root.section("model");
  config.model = read_model(model);
  config.max_duration = model.integer("max_duration", 0, 0, 1'000'000);
  config.join_long = model.choice("long_segments", "cut", {"cut", "joined"}) == "joined";
  config.training = read_training(root.section("training"));
  const TomlReader evaluation = root.section("evaluation");
  config.tolerances = evaluation.numbers("tolerances", config.tolerances);
  if (config.tolerances.empty()) evaluation.refuse("tolerances", "must hold at least one number");
  for (const double tolerance : config.tolerances)
    if (!(tolerance >= 0)) evaluation.refuse("tolerances", "must not be negative");
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
