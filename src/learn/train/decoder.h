#pragma once
// From normalised features to segments with their posteriors.

#include <cstdint>
#include <memory>
#include <vector>

#include "learn/model/segmenter.h"
#include "learn/train/corpus.h"

namespace segfuse {
class ThreadPool;
}

namespace segfuse::learn {

struct DecodedSegment {
  FrameSegment segment;
  /// P(this very segment) for the semi-Markov head; else the mean label posterior of its frames.
  double posterior = 0;
  /// Mean over its frames of P(frame has this label).
  double label_posterior = 0;
  /// P(a boundary within +-tolerance of its start), 1 for the first; NaN for the linear chain.
  double start_confidence = 0;
};

struct Decoded {
  std::vector<DecodedSegment> segments;
  std::vector<float> boundary;  ///< (T) P(a segment starts here); empty for the linear chain
  std::vector<double>
      duration;                ///< (K, C) expected number of segments; semi-Markov with posteriors
  double log_probability = 0;  ///< of the decoded segmentation (semi-Markov and linear chain)
};

class Decoder {
 public:
  /// `parameters` and `duration_limit` are shared, not copied: later changes of their content
  /// count.
  Decoder(ThreadPool& pool, const Segmenter& segmenter, std::vector<Tensor> parameters,
          Tensor duration_limit);
  ~Decoder();

  struct Options {
    bool posteriors = true;  ///< without: labels and boundaries only
    std::int64_t tolerance_frames = 2;
    std::int64_t batch_frames = 20000;
  };
  /// One result a sequence, in their order; a sequence's result does not depend on the others.
  std::vector<Decoded> decode(const std::vector<Sequence>& sequences, const Options& options);
  /// Sum over sequences of -log p(gold).
  double loss(const std::vector<Sequence>& sequences, std::int64_t batch_frames = 20000);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace segfuse::learn
