#include "learn/train/decode/posterior/path_posterior.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace segfuse::learn {

FrameVisitor frames_into(Decoded& out, std::int64_t frames, std::int64_t classes, bool boundary) {
  out.label.resize(static_cast<std::size_t>(frames * classes));
  if (boundary) out.boundary.resize(static_cast<std::size_t>(frames));
  return [&out, classes, boundary](std::int64_t t, std::span<const double> label, double starts) {
    std::ranges::transform(label, out.label.begin() + t * classes,
                           [](double p) { return static_cast<float>(p); });
    if (boundary) out.boundary[static_cast<std::size_t>(t)] = static_cast<float>(starts);
  };
}

void PathPosterior::describe(const semicrf::SegmentationsView& path, const Reader& read,
                             const FrameVisitor& visit, Decoded& out) {
  const std::vector<semicrf::SegmentPosterior> posteriors =
      blocks_.describe(path, tolerance_, read, visit);
  out.log_probability = blocks_.score() - blocks_.log_partition();
  out.segments.clear();
  out.segments.reserve(posteriors.size());
  for (std::int64_t i = 0; i < std::ssize(posteriors); ++i) {
    const semicrf::SegmentPosterior& p = posteriors[static_cast<std::size_t>(i)];
    out.segments.push_back({{path.start(i), path.duration(i), path.label(i)},
                            semi_ ? p.segment : p.label,
                            p.label,
                            semi_ ? p.start : std::numeric_limits<double>::quiet_NaN()});
  }
}

/// P(boundary at t) = 1 - sum_c p_{t-1}(c) p_t(c).
void FramePosterior::push(const PieceScores& scores) {
  const auto classes = static_cast<std::int64_t>(classes_);
  for (std::int64_t t = 0; t < scores.frames; ++t, ++frames_) {
    const std::span<const float> frame(scores.emission + t * classes, classes_);
    const std::int32_t label = scores.best(t, classes);
    if (segments_.empty() || segments_.back().segment.label != label)
      segments_.push_back({{frames_, 0, label}, 0, 0, 1});
    ++segments_.back().segment.duration;
    segments_.back().label_posterior += std::exp(double{frame[static_cast<std::size_t>(label)]});
    if (!visit_) continue;
    double stay = 0;
    for (std::size_t c = 0; c < before_.size(); ++c)
      stay += std::exp(double{frame[c]} + before_[c]);
    label_.resize(classes_);
    std::ranges::transform(frame, label_.begin(), [](float score) { return std::exp(score); });
    visit_(frames_, label_, std::max(0.0, 1 - stay));
    before_.assign(frame.begin(), frame.end());
  }
}

std::vector<DecodedSegment> FramePosterior::finish() {
  for (DecodedSegment& one : segments_)
    one.posterior = one.label_posterior /= static_cast<double>(one.segment.duration);
  return std::move(segments_);
}

}  // namespace segfuse::learn
