#pragma once
// The state of a training run as one file.

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "learn/nn/layers.h"
#include "learn/train/files/safetensors.h"
#include "learn/train/loop/trainer.h"

namespace segfuse::learn {

/// Everything that the next step depends on.
struct TrainingState {
  std::vector<Tensor> parameters;
  std::vector<Tensor> first_moment;   ///< AdamW's m
  std::vector<Tensor> second_moment;  ///< AdamW's v
  std::vector<Tensor> average;        ///< running mean; empty when not used
  std::vector<Tensor> best;           ///< parameters of the best epoch so far
  std::int64_t step = 0;              ///< steps done
  std::int64_t epoch = 0;             ///< epochs done
  std::int64_t batch = 0;             ///< batches of the current epoch done
  double epoch_loss = 0;              ///< sums over these batches
  double epoch_segments = 0;
  double best_score = 0;        ///< EpochRecord::dev_score of the best epoch
  std::int64_t best_epoch = 0;  ///< 0: none yet
  std::vector<EpochRecord> history;
};

/// Replaces the file in one step. `recipe` says which run it belongs to.
void write_checkpoint(const std::filesystem::path& path, const TrainingState& state,
                      const std::vector<nn::ParameterSpec>& specs, const Recipe& recipe);
/// DataError for a malformed file; UsageError that names what differs when the recipe is another.
TrainingState read_checkpoint(const std::filesystem::path& path,
                              const std::vector<nn::ParameterSpec>& specs, const Recipe& recipe);

/// Which run a checkpoint belongs to.
Recipe recipe_of_checkpoint(const std::filesystem::path& path);
/// How many steps were done when it was written.
std::int64_t steps_of_checkpoint(const std::filesystem::path& path);

/// The same without the disk; `source` names the file in errors.
TensorFile file_of(const TrainingState& state, const std::vector<nn::ParameterSpec>& specs,
                   const Recipe& recipe);
TrainingState state_of(const TensorFile& file, const std::string& source,
                       const std::vector<nn::ParameterSpec>& specs, const Recipe& recipe);

}  // namespace segfuse::learn
