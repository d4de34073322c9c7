#pragma once
// The configuration of one training run, read from TOML and written back into the model file.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/toml_reader.h"
#include "learn/model/grammar.h"
#include "learn/model/segmenter.h"
#include "learn/optim/adamw.h"
#include "segfuse/data.h"

namespace segfuse {
struct Encoder;
struct BucketConfig;
}  // namespace segfuse

namespace segfuse::learn {

struct DataSource {
  std::string path;                       ///< manifest or directory (see load_manifest)
  std::vector<Recording> held;            ///< instead, where there are any
  std::string tier;                       ///< of TextGrid labels
  std::optional<std::string> fill_label;  ///< for gaps
  std::string fold;                       ///< folding map, applied to all labels before training
  std::string metric_fold;                ///< folding map for the metrics alone
  bool allow_commands = false;            ///< in the manifest; no file can say so, only the user
  bool metric_merge = true;               ///< MetricsConfig::merge_folded
  bool unlabelled_unknown = false;        ///< what no label covers takes no part; else it is filled
  std::int64_t folds = 0;      ///< the recordings are dealt into so many; 0: split as they are
  std::int64_t test_fold = 1;  ///< the one that is the test set
  double train_share = 1;      ///< so much of the training recordings is trained on
  std::string group;           ///< ManifestOptions::group
  bool skip_unpaired = false;  ///< leave out recordings without labels, and labels without them
  bool card_said_it = false;   ///< what is left out, and what is odd about labels, was said before
};

/// What the best epoch is best in, on the development set; among equals the lowest loss decides.
enum class Selection { kLabelError, kBoundaryF1, kSegmentF1, kLoss };
/// label_error, boundary_f1, segment_f1, loss.
std::string name_of(Selection selection);
bool lower_is_better(Selection selection);

struct TrainingPlan {
  std::int64_t epochs = 20;
  std::int64_t batch_size = 16;   ///< sequences of a step
  std::int64_t batch_frames = 0;  ///< frames of a step, with padding; 0: no bound
  /// Parts of a step's batch, each with its own padding and random numbers, whose gradients are
  /// added in the order of a balanced tree. The model's bits depend on it, and not on who computes
  /// which of them. A power of two that divides batch_size.
  std::int64_t shards = 1;
  bool chooses_shards = false;  ///< whether the configuration leaves their number to the trainer
  double learning_rate = 1e-3;
  double warmup = 0.1;  ///< share of all steps
  double clip = 1;      ///< largest norm of all gradients together; 0: no clipping
  double crf_reg = 0;   ///< half of it times the squares of the CRF's scores joins the loss
  std::int64_t fixed_length = 0;  ///< frames of every training sequence; 0: as they are
  std::int64_t patience = 0;  ///< epochs without a better development score; 0: never stop early
  std::int64_t select_every = 1;  ///< epochs between two scorings of the development set
  Selection select_by = Selection::kLabelError;
  Precision precision = Precision::kFloat32;  ///< of the steps; scores are decoded in f32
  std::string init;  ///< model.safetensors or its directory (initial_model.h); empty: none
  std::uint64_t seed = 1;
  optim::AdamWConfig adamw;
};

/// How the batches of the shards are made (learn/data/buckets.h).
BucketConfig shard_batches(const TrainingPlan& plan);

struct TrainConfig {
  std::string title;
  DataSource data;
  FeatureConfig features;
  ModelConfig model;
  std::int64_t max_duration = 0;  ///< in frames; 0: the longest gold segment of the training set
  bool join_long = false;  ///< decoded pieces of a segment that is longer than allowed are joined
  TrainingPlan training;
  Augmentation augmentation;  ///< of training batches alone
  Grammar grammar;
  std::vector<double> tolerances = {0.02};  ///< for boundaries, in seconds
  double edge_tolerance = 0.15;             ///< as MetricsConfig has it
  /// Labels that are no segments of interest; without them the fill label is.
  std::optional<std::vector<std::string>> background;
  std::string text;                           ///< the TOML it was read from
  std::vector<std::string> overrides;         ///< \"section.key=value\", winning over the text
  std::vector<TomlReader::Setting> settings;  ///< every key, with overrides and defaults
};

/// Whether a model of the configuration with this head has an OrderLimit.
bool is_ordered(const TrainConfig& config, HeadKind head);

/// Reads and checks all of it; DataError with file, line and column for anything wrong or unknown.
/// Relative paths are kept as they are written.
TrainConfig read_train_config(const std::filesystem::path& path,
                              const std::vector<std::string>& overrides = {});
TrainConfig parse_train_config(const std::string& text, const std::string& name,
                               const std::vector<std::string>& overrides = {});

/// Data given beside the configuration win over its data.path.
void set_data_path(TrainConfig& config, const std::string& path);

/// As if the configuration had these overrides, all of [evaluation]; UsageError for others.
void set_evaluation(TrainConfig& config, const std::vector<std::string>& overrides);

/// Sets the shards. UsageError where they do not divide the batch.
void set_shards(TrainConfig& config, std::int64_t shards);
/// For an encoder that is given: it has one recording at a time, so each is a shard of its own.
/// UsageError where the configuration asks for other shards, for batches that cannot be cut so, or
/// in an override for a key of the encoder.
void prepare_for_encoder(TrainConfig& config);
/// Puts an encoder in place of that of [model], whose keys leave the settings.
void set_encoder(TrainConfig& config, std::shared_ptr<const GivenEncoder> encoder);
/// UsageError for one that cannot be trained.
void set_encoder(TrainConfig& config, Encoder encoder);

/// The settings as TOML: what the run was made with, not what stood in the file.
std::string settings_text(const TrainConfig& config);

/// softmax, linear_chain, semi_markov.
std::string name_of(HeadKind kind);
/// float32, tf32, bf16.
std::string name_of(Precision precision);

}  // namespace segfuse::learn
