#pragma once
// One training run from a configuration to a model and its figures.

#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "learn/train/commands/config.h"
#include "learn/train/decode/evaluation.h"
#include "learn/train/files/model_file.h"
#include "learn/train/loop/trainer.h"

namespace segfuse::data {
class FeatureStore;
}

namespace segfuse::learn {

struct InitialModel;
struct TunedCleanUp;

/// The data of one configuration, loaded and normalised.
struct Corpus {
  LabelledSet train;
  LabelledSet dev;
  LabelledSet test;
  Alphabet labels;
  Normalisation normalisation;
  double seconds = 0;                          ///< of all audio
  std::shared_ptr<const InitialModel> init{};  ///< whose normalisation this is; may be null
};

/// Into the log, unless it is empty.
void tell(const std::string& text);

/// Whether files or folders say the split of each recording, so that none is dealt.
bool splits_are_given(const TrainConfig& config, const std::string& path, bool allow_commands);

/// The recordings of a manifest or directory, as choose_recordings() leaves them; what
/// data.unpaired leaves out is said, and which of several label files are read.
std::vector<Recording> find_recordings(const TrainConfig& config, const std::string& path,
                                       bool allow_commands);
/// Deals them into data.folds and leaves out what is beyond data.train_share, and says so.
void choose_recordings(std::vector<Recording>& recordings, const TrainConfig& config);

/// Features that are too many to hold go to a file without a name in `scratch`; where that is empty
/// they are held.
Corpus load_corpus(const TrainConfig& config, const std::filesystem::path& scratch,
                   const Context& context);
/// The same with a store that the caller made.
Corpus load_corpus(const TrainConfig& config, data::FeatureStore& store, const Context& context);
/// Only the recordings of one split (nothing: of all), for a model that exists.
LabelledSet load_labelled(const TrainedModel& model, const std::string& data,
                          std::optional<Split> split, const Context& context);

struct System {
  std::string name;  ///< semi_markov, linear_chain, softmax or softmax_cleaned
  TrainedModel model;
  TrainingOutcome outcome;
  Evaluation evaluation;
  std::int64_t parameter_count = 0;
  double seconds = 0;  ///< training and selection, wall time of this process
  std::shared_ptr<const TunedCleanUp> clean_up{};  ///< what became of the softmax's segments
};

/// One head before its first step.
struct Start {
  TrainedModel model;  ///< without parameters
  std::vector<Tensor> parameters;
};
/// Cuts the corpus' gold segments to what the head allows.
Start start_of(const TrainConfig& config, HeadKind head, Corpus& corpus);

/// Where the configuration leaves it open: as many shards a step as the run that is continued has,
/// or the least number that feeds all ranks, which is said. UsageError where there are more ranks
/// than shards.
void choose_shards(TrainConfig& config, const std::filesystem::path& checkpoint, bool resume,
                   comm::Group* group);

/// What is trained on: the training set, or pieces of training.fixed_length frames. UsageError
/// where no recording is that long.
std::vector<Sequence> training_sequences(const TrainConfig& config, const Corpus& corpus);

/// Trains one head on the corpus and measures it on the test set (the development set when there is
/// none); of a group only the first rank has the figures.
System run_system(const TrainConfig& config, HeadKind head, Corpus& corpus,
                  const TrainerOptions& options);

/// How good segments of the development set are.
Scorer make_scorer(const TrainConfig& config, const Corpus& corpus);

/// Adds a system to a comparison: the softmax, its segments cleaned up with the setting that is
/// best on the development set by training.select_by (by label_error where that is the loss,
/// which no segments have). Without development recordings it warns and adds nothing. With a group
/// all ranks call it; only the first has the figures.
void add_cleaned(const TrainConfig& config, const Corpus& corpus, const TrainerOptions& options,
                 std::vector<System>& systems);

/// The measure that the setting optimises.
Selection clean_up_criterion(const TrainConfig& config);
/// A sentence about the setting; empty where there is none.
std::string clean_up_text(const System& system);

/// Logs what a training begins with; nothing for an empty text.
void introduce(const std::string& text);

}  // namespace segfuse::learn
