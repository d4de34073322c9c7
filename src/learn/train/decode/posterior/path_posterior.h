#pragma once
// What the posterior says of a recording's segments: one recursion for those that are held and for
// those that come in pieces, so that both have the same bits.

#include <cstdint>

#include "learn/train/decode/decoder.h"
#include "learn/train/decode/posterior/frame_rows.h"
#include "learn/train/live/piece_network.h"

namespace segfuse::learn {

/// Room for the posterior of so many frames, and what puts it there.
FrameVisitor frames_into(Decoded& out, std::int64_t frames, std::int64_t classes, bool boundary);

/// Of the CRF heads.
class PathPosterior {
 public:
  using Reader = semicrf::BlockPosterior::Reader<float>;

  /// `shared`, `block`, `kept` and `starts` are those of BlockPosterior.
  PathPosterior(const semicrf::Potentials<float>& shared, bool semi, std::int64_t tolerance,
                std::int64_t block, semicrf::NumberStore* kept = nullptr,
                const semicrf::View<const std::uint8_t, 1>& starts = {})
      : semi_(semi), tolerance_(tolerance), blocks_(shared, block, kept, starts) {}
  void push(const semicrf::FrameScores<float>& scores) { blocks_.push(scores); }
  double log_partition() const { return blocks_.log_partition(); }
  /// The segments of a path that has a probability, and its log-probability, into `out`. Of a
  /// linear chain the frames of one label that follow each other are one segment.
  void describe(const semicrf::SegmentationsView& path, const Reader& read,
                const FrameVisitor& visit, Decoded& out);

 private:
  bool semi_;
  std::int64_t tolerance_;
  semicrf::BlockPosterior blocks_;
};

/// Of the softmax head, whose frames are independent: the segments too.
class FramePosterior {
 public:
  explicit FramePosterior(std::int64_t classes, FrameVisitor visit = {})
      : classes_(static_cast<std::size_t>(classes)), visit_(std::move(visit)) {}
  /// The next frames, whose scores are log-probabilities.
  void push(const PieceScores& scores);
  /// The segments with their posteriors.
  std::vector<DecodedSegment> finish();

 private:
  std::size_t classes_;
  FrameVisitor visit_;
  std::int64_t frames_ = 0;
  std::vector<float> before_;  ///< the scores of the frame before
  std::vector<double> label_;
  std::vector<DecodedSegment> segments_;
};

}  // namespace segfuse::learn
