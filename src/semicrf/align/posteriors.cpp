// Posteriors of the segments of the best path.

#include <algorithm>
#include <cmath>

#include "base/sizes.h"
#include "semicrf/align/lattice.h"

namespace segfuse::semicrf {
void AlignLattice::find_posteriors(Alignment& alignment) {
  const auto nodes = static_cast<std::int32_t>(orders_.nodes.size());
  const double z = alignment.log_partition =
      forward_within<false>(8.0 + 0.25 * nodes, kMargin, alignment.score);
  changes_.assign(columns_.size(), {});
  for (std::size_t c = 0; c < columns_.size(); ++c)
    if (columns_[c].used) changes_[c].assign(at(length_ + 1), 0.0);
  for (std::int32_t n = nodes - 1; n >= 0; --n) {
    backward(n, z);
  }
  for (std::vector<double>& of_label : changes_)
    for (std::size_t t = 1; t < of_label.size(); ++t) of_label[t] += of_label[t - 1];
  for (AlignedSegment& s : alignment.segments) {
    double sum = 0.0;
    for (std::int64_t t = s.start; t < s.start + s.duration; ++t)
      sum += std::clamp(changes_[at(s.label)][at(t)], 0.0, 1.0);
    s.label_posterior = sum / static_cast<double>(s.duration);
    s.posterior = std::min(1.0, posterior(s, z));
  }
}

double AlignLattice::inner(const LabelColumn& label, std::int64_t s, std::int64_t e) {
  const std::int64_t longest = label.durations.longest;
  if (label.since[at(e)] > s) return kNegInf;
  const bool one =
      label.rule == PieceRule::kOne || (label.rule == PieceRule::kAfterFull && e - s <= longest);
  if (one)
    return e - s > longest ? kNegInf
                           : label.start[at(s)] + (label.frames(s, e) + label.durations.of(e - s));
  std::vector<double> before(at(e - s), kNegInf);  // a piece that starts at s + i, with its start
  window_.reset(label.durations, scaled_);
  for (std::int64_t t = s; t < e; ++t) {
    double q = t == s ? 0.0 : kNegInf;
    if (label.rule == PieceRule::kAny && t > s)
      q = window_.sum(t - s) + (label.content[at(t)] + label.end[at(t)]) + label.self;
    if (label.rule == PieceRule::kAfterFull && t - s >= longest)
      q = before[at(t - longest - s)] + label.durations.of(longest) +
          (label.content[at(t)] + label.end[at(t)]) + label.self;
    q += label.start[at(t)] - label.content[at(t)];
    before[at(t - s)] = q;
    window_.push(q);
  }
  return window_.sum(e - s) + (label.content[at(e)] + label.end[at(e)]);
}

double AlignLattice::posterior(const AlignedSegment& segment, double log_partition) {
  const std::int64_t s = segment.start;
  const std::int64_t e = s + segment.duration;
  const double score = inner(columns_[at(segment.label)], s, e) - log_partition;
  double sum = 0.0;
  for (const std::int32_t node : nodes_of_[at(segment.label)]) {
    const NodeFrames& f = frames_[at(node)];
    if (f.empty() || s < f.enter || s > f.last_enter || e < f.first_end || e > f.last_end) continue;
    sum += std::exp(enter<false>(node, s) + score + leave(node, e));
  }
  return sum;
}

}  // namespace segfuse::semicrf
