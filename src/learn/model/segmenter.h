#pragma once
// The model: an encoder over frames and a head that scores segmentations, as Fusions.

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "ir/fusion.h"
#include "learn/nn/layers.h"

namespace segfuse::semicrf {
enum class DurationFamily;
}

namespace segfuse::learn {

class GivenEncoder;

enum class HeadKind {
  kSemiMarkov,   ///< semi-Markov CRF: durations up to max_duration
  kLinearChain,  ///< the same with max_duration 1: a CRF over frames
  kSoftmax,      ///< each frame for itself
};

/// How the matrix products of a training are computed; all else is f32.
enum class Precision {
  kFloat32,
  kTF32,      ///< f32 products whose operands a GPU rounds to TF32
  kBFloat16,  ///< operands and results are rounded to bf16, sums are f32
};

struct ModelConfig {
  // Encoder: [stride frames stacked] -> conv -> residual blocks -> norm -> linear.
  std::int64_t width = 128;
  std::int64_t stem_kernel = 3;
  std::int64_t kernel = 5;
  std::vector<std::int64_t> dilations = {1, 2, 4, 8};  ///< one residual convolution block each
  nn::Recurrence recurrence = nn::Recurrence::kLstm;
  std::int64_t recurrent_blocks = 0;   ///< after the convolutions, in both directions
  std::int64_t recurrent_states = 64;  ///< of each direction
  std::int64_t attention_blocks = 0;   ///< after these
  std::int64_t attention_heads = 4;
  std::int64_t subsample = 1;  ///< frames stacked at the input and unstacked at the output
  /// Whether a frame's scores depend on it and earlier frames alone; stacked frames are one.
  bool causal = false;
  double dropout = 0.1;
  // Head.
  HeadKind head = HeadKind::kSemiMarkov;
  bool boundary_scores = false;         ///< start and end scores per frame and label
  semicrf::DurationFamily durations{};  ///< kTable; else scores of durations follow a formula
  std::int64_t duration_buckets = 8;    ///< of kBuckets, at most

  // Set from the data.
  std::int64_t features = 0;      ///< D
  std::int64_t classes = 0;       ///< C
  std::int64_t max_duration = 1;  ///< K, in frames
  bool ordered = false;           ///< the CRF has an OrderLimit (learn/model/grammar.h)
  /// (C), or empty: what is decoded stays as it is. Else neighbours of one label are joined: all of
  /// them where this holds; else a piece to one before it that is as long as the label may be.
  std::vector<bool> joins_neighbours{};
  /// Instead of the encoder above; `subsample` is its stride. It has one recording at a time (B is
  /// 1), so that none can see the padding of another.
  std::shared_ptr<const GivenEncoder> given{};
  friend bool operator==(const ModelConfig&, const ModelConfig&) = default;

  /// Whether the network takes a sequence as a whole only. Else it takes pieces of it.
  bool needs_whole() const {
    return given || attention_blocks > 0 || (recurrent_blocks > 0 && !causal);
  }
  /// Whether states go from a piece of a sequence to the next.
  bool carries() const { return !needs_whole() && recurrent_blocks > 0; }
};

/// Whether a parameter is one of the CRF's scores: transition, initial, final, duration.
bool is_crf(const nn::ParameterSpec& spec);

/// The scores of durations (K, C) f32 that the parameters "crf.duration" of a semi-Markov head
/// make.
Tensor duration_scores(const ModelConfig& config, const Tensor& parameters);

/// The programs of one model and its parameters. K is config.max_duration for the semi-Markov head
/// and 1 for the linear chain.
class Segmenter {
 public:
  explicit Segmenter(ModelConfig config);

  const ModelConfig& config() const noexcept { return config_; }
  std::int64_t max_duration() const noexcept;
  const std::vector<nn::ParameterSpec>& parameters() const noexcept { return parameters_; }
  std::int64_t parameter_count() const;
  /// The first values of the parameters; those of the CRF follow from the data.
  std::vector<Tensor> initial(std::uint64_t seed) const;
  /// Inputs of the programs that no step changes.
  std::vector<std::pair<std::string, Tensor>> constants() const;

  /// One forward and backward pass. T is a multiple of config.subsample. Inputs: the parameters;
  /// features f32 (B, T, D), anything beyond the lengths; lengths i64 (B); labels i32 (B, T);
  /// segment_start bool (B, T); duration_limit f32 (K, C), 0 or -inf (semi-Markov); with
  /// config.ordered transition_limit (1, C, C), initial_limit and final_limit (C); scale f32 [];
  /// seed i64 [2]. Outputs: loss = scale * sum over sequences of -log p(gold), f32 []; its gradient
  /// by each parameter, "gradient.NAME". With Precision::kBFloat16 the products of the encoder are
  /// bf16, and those of its gradients; the scores are f32 products of its result.
  ir::Fusion training(Precision precision = Precision::kFloat32) const;

  /// Inputs: the parameters; features; lengths. Outputs: emission f32 (B, T, C) (log-probabilities
  /// for the softmax head) and, with boundary scores, start and end (B, T, C).
  ir::Fusion inference() const;

  /// The same for a piece of a sequence, where config.carries(). More inputs: first i64 [], before
  /// which frames were in an earlier piece and are here for the convolutions alone; states, 0 in
  /// the first piece, "carried.NAME" (B, ...). The last ones are outputs of these names, behind the
  /// scores. Scores of frames before `first` mean nothing.
  ir::Fusion going_on() const;

 private:
  ModelConfig config_;
  std::vector<nn::ParameterSpec> parameters_;
};

}  // namespace segfuse::learn
