#pragma once
// From normalised features to segments with their posteriors.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/executable.h"
#include "learn/model/grammar.h"
#include "learn/model/segmenter.h"
#include "learn/train/loop/corpus.h"

namespace segfuse::semicrf {
struct LabelOrders;
enum class PieceRule : std::uint8_t;
}  // namespace segfuse::semicrf

namespace segfuse::learn {

class FrameRows;

/// The longest duration of each label that a duration_limit_table() allows.
std::vector<std::int64_t> limits_of(const Tensor& table);

struct DecodedSegment {
  FrameSegment segment;
  /// P(this very segment) for the semi-Markov head; else, and where pieces were joined, the mean
  /// label posterior of its frames.
  double posterior = 0;
  /// Mean over its frames of P(frame has this label).
  double label_posterior = 0;
  /// P(a boundary within +-tolerance of its start), 1 for the first; NaN for the linear chain.
  double start_confidence = 0;
};

/// Another segmentation of a recording.
struct Alternative {
  std::vector<FrameSegment> segments;
  double log_probability = 0;
};

struct Decoded {
  std::vector<DecodedSegment> segments;
  std::vector<Alternative> best;     ///< the most probable, best first, where they were requested
  std::vector<Alternative> samples;  ///< drawn, where they were requested
  /// For each of the sequence's gold segments the mean over its frames of P(frame has its label);
  /// NaN where the model lacks that. With posteriors.
  std::vector<double> gold;
  std::vector<float> label;     ///< (T, C) P(frame has this label), where asked for
  std::vector<float> boundary;  ///< (T) P(a segment starts here), where asked for or known with
                                ///< `gold`; empty for the linear chain
  std::shared_ptr<FrameRows> frames;  ///< both, of a long recording that is not held
  std::vector<double> duration;       ///< (K, C) expected number of segments, where asked for
  double log_probability = 0;  ///< of the decoded segmentation (semi-Markov and linear chain)
};

/// The decoded segments of each.
std::vector<std::vector<FrameSegment>> segments_of(const std::vector<Decoded>& decoded);

/// Of the batches of a call those whose number leaves this remainder.
struct BatchShare {
  std::int64_t remainder = 0;
  std::int64_t divisor = 1;
  bool has(std::int64_t batch) const { return batch % divisor == remainder; }
};
/// The addends of the loss of a set.
struct BatchLosses {
  std::int64_t batch = 0;
  std::vector<double> losses;
};
/// In the order of the batches.
double sum_of(std::vector<BatchLosses> all);

/// The normalised features of a recording, piece by piece: (n, D) f32, without frames at its end.
using FeaturePieces = std::function<Tensor()>;

class LiveDecoding;

class Decoder {
 public:
  /// With padding, at most so many at a time.
  static constexpr std::int64_t kBatchFrames = 20000;

  /// `parameters` and `limits` are shared, not copied: later changes of their content
  /// count. Runs on the threads of the execution's context. `source` is the model's file, for
  /// messages; empty where there is none.
  Decoder(const Segmenter& segmenter, std::vector<Tensor> parameters, Limits limits,
          const engine::ExecutableOptions& execution, std::string source = {});
  ~Decoder();

  struct Options {
    bool posteriors = true;         ///< without: labels and boundaries only
    bool frame_posteriors = false;  ///< fills Decoded::label and boundary, or frames
    bool durations = false;         ///< fills Decoded::duration; semi-Markov, of what is held
    bool minimum_risk =
        false;                ///< the best expected boundary F1, not the most probable; semi-Markov
    std::int64_t k_best = 0;  ///< fills Decoded::best; the CRF heads
    std::int64_t samples = 0;  ///< fills Decoded::samples; the CRF heads
    std::uint64_t seed = 0;    ///< of the samples
    std::int64_t tolerance_frames = 2;
    std::int64_t batch_frames = kBatchFrames;
    std::int64_t piece_frames = 4096;  ///< of a long recording that the network takes at a time
    std::int64_t block_frames = 8192;  ///< and of its posterior, or K where that is more
  };
  /// Whether decode_long() can serve the request: no encoder that needs all frames at once, and
  /// one segmentation, the most probable.
  bool can_decode_long(const Options& options) const;
  /// A recording of any length. Of its frames only some pieces are held at a time; the network's
  /// scores go to a file without a name in `scratch`, or are held where that is empty. The result
  /// does not depend on how the features come, and with the same scores is that of decode().
  Decoded decode_long(const std::string& id, const FeaturePieces& next, const Options& options,
                      const std::filesystem::path& scratch = {});
  /// A recording that is decoded as it arrives; this decoder outlives it. With `lookahead` (at
  /// least least_lookahead()) a boundary is decided at the latest when so many frames behind it
  /// have arrived. The network takes `piece_frames` at a time. UsageError where can_decode_long()
  /// is false.
  std::unique_ptr<LiveDecoding> live(const std::string& id, std::int64_t piece_frames,
                                     std::optional<std::int64_t> lookahead);
  /// In frames: the network's, and that of the longest segment.
  std::int64_t least_lookahead(std::int64_t piece_frames) const;
  /// One result a sequence, in their order; a sequence's result does not depend on the others.
  std::vector<Decoded> decode(const std::vector<Sequence>& sequences, const Options& options);
  /// The same for the sequences of some batches, each with its number.
  std::vector<std::pair<std::int64_t, Decoded>> decode_share(const std::vector<Sequence>& sequences,
                                                             const Options& options,
                                                             BatchShare share);
  /// The most probable segmentation of each sequence with labels in its order. All probabilities
  /// are those given the order; start confidences are NaN, and there are no posteriors by frame.
  /// DataError where a sequence has no segmentation.
  std::vector<Decoded> align(const std::vector<Sequence>& sequences,
                             const std::vector<semicrf::LabelOrders>& orders,
                             const std::vector<semicrf::PieceRule>& pieces,
                             std::int64_t batch_frames = kBatchFrames);
  /// Sum over sequences of -log p(gold).
  double loss(const std::vector<Sequence>& sequences, std::int64_t batch_frames = kBatchFrames);
  /// The addends for some batches.
  std::vector<BatchLosses> loss_share(const std::vector<Sequence>& sequences, BatchShare share,
                                      std::int64_t batch_frames = kBatchFrames);
  /// The number of the batch that the last call worked on last.
  std::int64_t batch() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace segfuse::learn
