#pragma once
// A corpus in memory, ready for training, and its batches as tensors.

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "learn/model/segmenter.h"
#include "segfuse/data.h"

namespace segfuse {
class ThreadPool;
}

namespace segfuse::data {
class Augmenter;
}

namespace segfuse::learn {

class BoundInputs;

/// What is known of a recording before it is decoded; each of its frames, or empty.
struct Known {
  std::vector<std::uint8_t> starts;  ///< not 0: a segment must start here
  std::vector<std::int32_t> label;   ///< not negative: the frame's label
  bool empty() const { return starts.empty() && label.empty(); }
};

/// One recording as the network sees it.
struct Sequence {
  std::string id;
  Tensor features;                     ///< (T, D) f32, normalised
  std::vector<FrameSegment> segments;  ///< gold, tiling [0, T), each within its label's limit;
                                       ///< empty without labels; kUnknownLabel where the training
                                       ///< set lacks the label
  Known known{};                       ///< decode() obeys it, and only decode()
  std::int64_t frames() const { return features.shape()[0]; }
};

/// Splits every segment longer than limits[label] frames into the fewest parts that fit: lengths
/// differing by at most one, longer ones first; or with `full` as long as they may be, and the
/// rest. With `shortest` the rest takes of the part before it what it lacks; limits are then at
/// least 2 shortest - 1.
std::vector<FrameSegment> split_long(const std::vector<FrameSegment>& segments,
                                     const std::vector<std::int64_t>& limits, bool full = false,
                                     const std::vector<std::int64_t>& shortest = {});

/// join_pieces() of pieces that come one by one.
class PieceJoiner {
 public:
  PieceJoiner(std::vector<bool> joins, std::vector<std::int64_t> limits)
      : joins_(std::move(joins)), limits_(std::move(limits)) {}
  /// Appends the segments that nothing which follows can be joined to.
  void push(const FrameSegment& piece, std::vector<FrameSegment>& whole);
  void finish(std::vector<FrameSegment>& whole);

 private:
  std::vector<bool> joins_;
  std::vector<std::int64_t> limits_;
  std::optional<FrameSegment> open_;
};

/// Neighbours of one label become one segment, as ModelConfig::joins_neighbours has it for labels
/// of at most limits[label] frames. Undoes split_long where a label never follows itself, and with
/// `full` also where it does, but behind a segment that was just as long as its limit.
std::vector<FrameSegment> join_pieces(const std::vector<FrameSegment>& segments,
                                      const std::vector<bool>& joins,
                                      const std::vector<std::int64_t>& limits);

/// Neighbouring frames of one label are one segment.
std::vector<FrameSegment> runs_of(const std::vector<std::int32_t>& labels);

/// Every sequence cut into pieces of exactly `frames`, the last piece reaching back into the one
/// before; the ids get the first frame, "a@0". Segments are cut where a piece is. Sequences that
/// are shorter are left out.
std::vector<Sequence> pieces_of(const std::vector<Sequence>& sequences, std::int64_t frames);

struct Batch {
  std::vector<std::int64_t> rows;  ///< indices of the sequences
  Tensor features;                 ///< (B, T, D), zero padding; T a multiple of the subsampling
  Tensor lengths;                  ///< i64 (B)
  Tensor labels;                   ///< i32 (B, T)
  Tensor segment_start;            ///< bool (B, T)
  std::int64_t segments = 0;
};

/// Stacks sequences. For the linear chain every frame starts a segment of its own. Sequences
/// without labels get label 0 throughout. The number of frames is a multiple of `round`, and of
/// what the encoder takes together.
Batch make_batch(const std::vector<Sequence>& sequences, const std::vector<std::int64_t>& rows,
                 const ModelConfig& model, std::int64_t round = 1);

/// Null where nothing is to be changed.
std::shared_ptr<const data::Augmenter> augmenter_of(const Augmentation& augmentation,
                                                    const FeatureConfig& features,
                                                    const Normalisation& normalisation,
                                                    std::uint64_t seed);
/// What an epoch shows of the sequences; padding stays 0.
void augment(Batch& batch, const data::Augmenter& augmenter, std::int64_t epoch, ThreadPool& pool);

/// A batch's place in the training.
struct ShardPlace {
  std::uint64_t seed = 0;     ///< of the training
  std::int64_t number = 0;    ///< of the shard, over all steps: what random numbers depend on
  std::int64_t segments = 0;  ///< gold segments of the whole step
};

/// Binds what a step gets beside the parameters and the limit of durations.
void bind_batch(BoundInputs& inputs, const Batch& batch, const ShardPlace& place);

/// What the training set says about the labels, for the first values of the CRF's scores.
struct LabelStatistics {
  std::vector<double> initial;                  ///< (C) counts
  std::vector<double> final;                    ///< (C)
  std::vector<std::vector<double>> transition;  ///< (C, C)
  std::vector<std::vector<double>> duration;    ///< (K, C)
  std::vector<std::int64_t> longest;            ///< (C) frames; 0 for a label that never occurs
};
LabelStatistics count_labels(const std::vector<Sequence>& sequences, std::int64_t classes,
                             std::int64_t max_duration);

}  // namespace segfuse::learn
