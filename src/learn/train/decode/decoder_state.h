#pragma once
// The state of the decoder, for batches and for long recordings.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <unordered_map>
#include <vector>

#include "learn/train/decode/decoder.h"
#include "learn/train/loop/bound_inputs.h"
#include "segfuse/semicrf.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::learn {

/// A score of the network that is no number.
struct BadScore {
  std::size_t index = 0;  ///< frame * classes + label
  float value = 0;
  float largest = 0;  ///< of the recording's features
};
/// DataError that names the recording and the model's file; `source` is empty where there is none.
[[noreturn]] void refuse_score(const std::string& source, const std::string& id,
                               std::int64_t classes, const BadScore& bad);
/// Of a recording whose best segmentation has no probability.
[[noreturn]] void refuse_recording(const std::string& id, const Known& known = {});
/// The first value that is not finite, or the end.
std::span<const float>::iterator first_not_finite(std::span<const float> values);
/// The largest size of the values and of `largest`; NaN if one is.
float largest_size(std::span<const float> values, float largest = 0);

/// DataError naming the batch's longest recording where attention would need more memory than there
/// is: of every head a score for each pair of positions, before and after the softmax. What runs
/// out of memory later is killed on many systems, without a word.
void check_attention(const ModelConfig& config, const std::vector<Sequence>& sequences,
                     const Batch& batch);

struct PieceState;

struct Decoder::State {
  State(const Segmenter& model, std::vector<Tensor> values, Limits limit,
        const engine::ExecutableOptions& execution, std::string file);
  /// The parameters go to the accelerator as they are now.
  void refresh();
  void bind(BoundInputs& to) const;
  /// One after the other, those of the share. Their lengths are multiples of `round`.
  void for_batches(const std::vector<Sequence>& sequences, std::int64_t frames, std::int64_t round,
                   BatchShare share, const std::function<void(const Batch&)>& work);

  /// The network's scores (B, T, C): emission, and start and end where it has them.
  std::vector<Tensor> run(const Tensor& features, const Tensor& lengths) {
    inputs.set("features", features);
    inputs.set("lengths", lengths);
    std::vector<Tensor> results = forward.run(inputs.tensors());
    for (Tensor& result : results) result = result.to_host();
    forward.check();
    return results;
  }
  std::vector<Tensor> scores(const std::vector<Sequence>& sequences, const Batch& batch);
  /// The same for a piece of one recording, whose states go to the next one.
  std::vector<Tensor> run_piece(const Tensor& features, const Tensor& lengths, PieceState& piece);

  /// The scores that all frames share. `duration` and `ordered` keep sums alive.
  semicrf::Potentials<float> shared();
  /// The same of a model whose frames are independent.
  semicrf::Potentials<float> independent();
  /// The CRF over a batch's scores.
  semicrf::Potentials<float> potentials(const std::vector<Tensor>& scores, const Batch& batch);

  void decode_frames(const std::vector<Sequence>& sequences, const Batch& batch,
                     const Tensor& log_p, const Options& options, std::vector<Decoded>& out) const;
  void decode_crf(const std::vector<Sequence>& sequences, const Batch& batch,
                  const std::vector<Tensor>& scores, const Options& options,
                  std::vector<Decoded>& out);
  /// Pieces are not joined across a start that is known.
  void join(Decoded& decoded, const Known& known) const;
  /// Labels that are known, in the scores of frames.
  void hold_labels(const std::vector<Sequence>& sequences, const Batch& batch,
                   Tensor& scores) const;
  void add_alternatives(const std::vector<Sequence>& sequences, const Batch& batch,
                        const semicrf::Potentials<float>& p, const std::vector<double>& log_z,
                        const Options& options, std::vector<Decoded>& out);
  void add_posteriors(const std::vector<Sequence>& sequences, const Batch& batch,
                      const semicrf::Potentials<float>& p, const Options& options,
                      std::vector<double>& log_z, std::vector<Decoded>& out);

  ModelConfig config;
  std::string source;
  Context context;
  std::shared_ptr<engine::Accelerator> accelerator;
  engine::ExecutableOptions how;
  engine::Executable forward;
  BoundInputs inputs;
  /// Of a model that carries states, where a recording comes in pieces.
  struct GoingOn {
    engine::Executable forward;
    BoundInputs inputs;
  };
  std::unique_ptr<GoingOn> going_on;
  semicrf::Engine engine;
  semicrf::Inference inference;
  std::unordered_map<std::string, Tensor> parameters;
  Limits limits;
  Tensor duration;
  OrderLimit ordered;
  std::int64_t at_batch = -1;
};

}  // namespace segfuse::learn
