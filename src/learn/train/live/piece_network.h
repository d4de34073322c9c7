#pragma once
// The network over a recording that comes in pieces.

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "learn/model/segmenter.h"

namespace segfuse::learn {

/// The network's scores of some frames: (n, C) each, start and end null where it has none.
struct PieceScores {
  std::int64_t frames = 0;
  const float* emission = nullptr;
  const float* start = nullptr;
  const float* end = nullptr;

  /// The label of frame t that scores best.
  std::int32_t best(std::int64_t t, std::int64_t classes) const;
};

/// Where a piece goes on, and what the network left behind the one before it.
struct PieceState {
  std::int64_t first = 0;       ///< frame from which on scores are requested; earlier ones are
                                ///< there for those that look back
  std::vector<Tensor> carried;  ///< empty: this is the first piece, or there is nothing to carry
};

/// The network over a recording that comes in pieces. Its own pieces have one shape and begin at
/// steps of the encoder: on the CPU a frame's scores have the bits that they have in the whole
/// recording.
class PieceNetwork {
 public:
  /// The network's scores for features (1, T, D) and lengths (1). Changes what is carried.
  using Run = std::function<std::vector<Tensor>(const Tensor&, const Tensor&, PieceState&)>;
  /// Takes the scores of the next frames.
  using Take = std::function<void(const PieceScores&)>;

  /// Its pieces have `frames` frames, rounded up to what the network stacks.
  /// `source` is the model's file, as Decoder has it.
  PieceNetwork(const ModelConfig& config, std::string id, std::int64_t frames,
               std::string source = {});

  /// The next features. DataError for a score that is no number, and for too many frames.
  void push(const Tensor& features, const Run& run, const Take& take);
  void finish(const Run& run, const Take& take);
  /// A frame has its scores at the latest when so many that follow it have arrived.
  std::int64_t delay() const { return piece_ - 1 + ahead_; }

 private:
  void work(std::int64_t end, const Run& run, const Take& take);
  std::int64_t first_needed() const;

  std::string id_;
  std::string source_;
  std::int64_t columns_, classes_;
  std::int64_t piece_;        ///< frames of a piece
  std::int64_t behind_;       ///< frames before it that its scores depend on
  std::int64_t ahead_;        ///< and frames after it
  std::int64_t period_;       ///< frames; at multiples of it what the network takes may begin
  std::int64_t arrived_ = 0;  ///< frames
  std::int64_t next_ = 0;     ///< first frame without scores
  std::int64_t first_ = 0;    ///< first frame that is held
  PieceState state_;
  std::vector<float> held_;
  float largest_ = 0;
};

}  // namespace segfuse::learn
