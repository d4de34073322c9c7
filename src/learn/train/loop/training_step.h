#pragma once
// One step of a training: the gradients of its shards, their sum in the tree, and the update.
//
// A shard is a batch of its own; its gradient is a function of the shard and the parameters alone.
// The shards are added in the order that comm/tree.h gives, on any rank.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "comm/tree.h"
#include "engine/executable.h"
#include "learn/model/segmenter.h"
#include "learn/optim/adamw.h"
#include "learn/optim/flat.h"
#include "learn/train/loop/bound_inputs.h"
#include "learn/train/loop/corpus.h"

namespace segfuse::learn {

class TrainingRanks;

/// The state that steps change.
struct FlatState {
  optim::FlatTensors parameters;
  optim::FlatTensors first_moment;
  optim::FlatTensors second_moment;
  optim::FlatTensors average;  ///< no parts where none is kept
};

struct StepOptions {
  std::int64_t shards = 1;  ///< TrainingPlan::shards
  double crf_reg = 0;       ///< TrainingPlan::crf_reg
  optim::AdamWConfig adamw{};
  /// start_sum() sums the gradient in pieces of about so many elements; 0: it is not called.
  std::int64_t piece = 0;
  Precision precision = Precision::kFloat32;
};

/// A piece costs the backward pass beside it about as much whatever its size: 25 MiB.
inline constexpr std::int64_t kSumPiece = (std::int64_t{25} << 20) / 4;

/// Inputs of a program by their names.
using NamedTensors = std::vector<std::pair<std::string, Tensor>>;

class TrainingStep {
 public:
  /// Works on `state` itself; on an accelerator on a copy there, see fetch().
  TrainingStep(const Segmenter& segmenter, const StepOptions& options, const FlatState& state,
               const optim::FlatLayout& layout, const NamedTensors& limits,
               const engine::ExecutableOptions& execution);

  /// Sends the tensors of a batch to the accelerator, if there is one.
  void stage(Batch& batch) const;

  /// A new step, of which the first `present` shards have batches; this rank computes those from
  /// `first` on.
  void begin(std::int64_t present, std::int64_t first = 0);
  /// Computes the gradient of the next shard and adds it to the sums. On an accelerator it is on
  /// its way when this returns.
  void add(const Batch& batch, const ShardPlace& place);
  /// The losses of the shards that were added, each -log p(gold) for each gold segment of the step.
  /// Waits. DataError where the CRF refuses what a shard gave it.
  std::vector<float> losses();
  /// Begins the sum of the gradients of all ranks, beside what is left of the last shard's backward
  /// pass; all ranks have computed their shards without error so far, and all call it or none.
  void start_sum(TrainingRanks& ranks);
  /// How the gradient is cut for that; see optim::text_of().
  const std::string& pieces() const { return pieces_text_; }
  /// Makes the gradient of the step, with what other ranks have and the CRF's regulariser, and
  /// returns its norm. Waits.
  double reduce(TrainingRanks& ranks);
  /// AdamW with the gradient times `clip`; `steps` counts this one.
  void update(double rate, double clip, std::int64_t steps);

  /// Copies what was updated into `state`; nothing to do on the CPU.
  void fetch(const FlatState& state) const;
  /// The other way: steps go on from `state`.
  void load(const FlatState& state) const;

  /// Why the gradient or the loss of a batch is not finite, or what the CRF refuses in it: first
  /// what the accelerator's kernels say, then operation by operation on the CPU. Empty where all is
  /// finite. Changes no state but the sums.
  struct Verdict {
    bool finite = true;
    std::string why;  ///< may be empty where it is not finite
  };
  Verdict examine(const Batch& batch, const ShardPlace& place, bool name_operation);

 private:
  const std::shared_ptr<engine::Accelerator>& accelerator() const { return execution_.accelerator; }
  optim::FlatTensors place(const optim::FlatTensors& tensors, std::string_view label) const;
  const optim::FlatTensors& slot(std::size_t index);
  void add_up();
  void plan_pieces(const Segmenter& segmenter, std::int64_t elements);
  void exchange(TrainingRanks& ranks);
  std::vector<Tensor> run(const Batch& batch, const ShardPlace& place, std::size_t slot);
  std::string offender();

  const optim::FlatLayout& layout_;
  engine::ExecutableOptions execution_;
  optim::AdamWConfig adamw_;
  FlatState live_;
  engine::Executable forward_backward_;
  BoundInputs step_inputs_;
  engine::Executable add_;
  std::optional<engine::Executable> regularise_;
  engine::Executable norm_;
  engine::Executable update_;
  BoundInputs update_inputs_;
  std::vector<std::string> gradient_inputs_;  ///< their names, in the order of the parameters

  std::int64_t shards_;
  comm::TreeSum sum_;
  std::int64_t present_ = 0;
  std::int64_t next_shard_ = 0;
  std::vector<optim::FlatTensors> slots_;      ///< of gradients; sum_ says what lies where
  std::vector<comm::TreeSum::Addition> left_;  ///< what sum_ asked for and is still to be done
  std::vector<optim::FlatPiece> pieces_;
  std::string pieces_text_;
  engine::Milestones milestones_;  ///< of pieces, in the last run
  bool started_ = false;           ///< the sum over ranks
  std::vector<Tensor> losses_;     ///< of this step's shards
};

}  // namespace segfuse::learn
