#pragma once
// The training loop: batches, steps, selection on the development set, checkpoints.

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "engine/executable.h"
#include "learn/model/segmenter.h"
#include "learn/train/commands/config.h"
#include "learn/train/files/recipe.h"
#include "learn/train/loop/corpus.h"

namespace segfuse::comm {
class Group;
struct NcclApi;
}  // namespace segfuse::comm

namespace segfuse::learn {

class RankWatch;

struct EpochRecord {
  std::int64_t epoch = 0;  ///< 1, 2, ...
  double train_loss = 0;   ///< mean of -log p(gold) per gold segment, with dropout and augmentation
  double dev_loss = 0;     ///< the same on the development set; NaN where it was not scored
  double dev_error = 0;    ///< label error rate there; NaN where it was not scored
  double learning_rate = 0;  ///< of the last step
  double crf_largest = 0;    ///< greatest magnitude of the CRF's parameters; 0 without a CRF
  double other_largest = 0;  ///< of all others
  double dev_score = 0;      ///< what TrainingPlan::select_by names; NaN where it was not scored
};

/// Greatest magnitude of the parameters, of the CRF's or of all others; NaN if one is.
double largest_magnitude(const std::vector<Tensor>& parameters,
                         const std::vector<nn::ParameterSpec>& specs, bool crf);

struct TrainingOutcome {
  std::vector<Tensor> parameters;  ///< those of the best epoch
  std::int64_t best_epoch = 0;
  bool stopped_early = false;
  Recipe recipe{};  ///< of the options, with what the data hold
  std::vector<EpochRecord> history;
};

struct TrainerOptions {
  std::filesystem::path checkpoint;  ///< written at the end of every epoch and when interrupted
  bool resume = false;               ///< continue from it, if it exists
  bool starts_anew = false;          ///< on the leading rank: not from what is there, all the same
  double checkpoint_seconds = 0;     ///< at most so long between two of them; 0: one an epoch
  bool quiet = false;
  bool interruptible = true;  ///< SIGINT, SIGTERM and SIGHUP end it after saving; one at a time
  engine::ExecutableOptions execution;  ///< how the programs of a step are run
  comm::Group* group = nullptr;         ///< ranks that share the shards; null: this process alone
  RankWatch* watch = nullptr;           ///< hears what this rank does; may be null
  std::string comm{};                   ///< how they exchange: segfuse::TrainOptions::comm
  const comm::NcclApi* nccl = nullptr;  ///< null: this machine's, where it is needed
  bool name_offender = true;  ///< a step that is not finite is run again to find the operation
  std::shared_ptr<const data::Augmenter> augmenter{};  ///< of the training batches; null: none
  std::string name = "training";                       ///< for the progress bar
  Recipe recipe{};  ///< of all but the data; a checkpoint with another one is refused
};

/// How good a decoded development set is.
struct DevScores {
  double label_error = 0;
  double boundary_f1 = 0;  ///< at the first tolerance
  double segment_f1 = 0;   ///< at the first tolerance
};
/// What the selection looks at; for kLoss, which no segmentation has, the label error rate.
double score_of(const DevScores& scores, Selection selection);
/// The scores of `decoded`, one for each recording of the development set.
using Scorer = std::function<DevScores(const std::vector<std::vector<FrameSegment>>& decoded)>;

inline constexpr double kLargeScore = 20;

/// Trains `segmenter` on `train` and keeps the parameters of the epoch that plan.select_by calls
/// the best on `dev` (the last one when `dev` is empty). The development loss leaves out recordings
/// with labels that training does not know. A function of its arguments alone: the same bits on any
/// number of threads, and after any number of interruptions and resumes. Throws Interrupted after
/// saving a checkpoint when the process is to end, and UsageError when the loss or gradient of a
/// step is not finite, which the step computes anyway. With a group all ranks call it with the same
/// arguments and return the same; only the first writes the checkpoint, shows progress, scores the
/// development set and throws what concerns all. Says once when a parameter of the CRF passes
/// kLargeScore.
TrainingOutcome train(const Segmenter& segmenter, const TrainingPlan& plan,
                      std::vector<Tensor> parameters, const Limits& limits,
                      const std::vector<Sequence>& train, const std::vector<Sequence>& dev,
                      const Scorer& score, const TrainerOptions& options);

}  // namespace segfuse::learn
