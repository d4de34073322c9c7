#pragma once
// A recording that is decoded while its features come.

#include <optional>
#include <string>
#include <vector>

#include "learn/train/live/piece_network.h"
#include "learn/train/loop/corpus.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::learn {

class LiveDecoding {
 public:
  /// `best` is nothing for the softmax head; `run` outlives this.
  LiveDecoding(PieceNetwork network, PieceNetwork::Run run, std::int64_t classes,
               std::optional<semicrf::OnlineDecoder> best, PieceJoiner joiner, std::string id);

  /// The next normalised features, (n, D): the segments that are final now, in order.
  std::vector<FrameSegment> push(const Tensor& features);
  /// The rest of them. DataError where there is no segmentation.
  std::vector<FrameSegment> finish();

 private:
  void take(const PieceScores& scores);
  void drain();
  std::vector<FrameSegment> ready();

  PieceNetwork network_;
  PieceNetwork::Run run_;
  PieceNetwork::Take take_;
  std::int64_t classes_;
  std::optional<semicrf::OnlineDecoder> best_;
  PieceJoiner joiner_;
  std::string id_;
  std::int64_t frames_ = 0;  ///< that have scores
  semicrf::Segmentations decided_;
  std::vector<FrameSegment> whole_;  ///< final, and not given yet
};

}  // namespace segfuse::learn
