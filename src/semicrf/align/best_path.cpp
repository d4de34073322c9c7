// The best path: its score, and its pieces from the last to the first.

#include <algorithm>
#include <tuple>

#include "base/sizes.h"
#include "semicrf/align/lattice.h"

namespace segfuse::semicrf {
/// Of the pieces that may end at t (their starts are not known yet), those that ties choose: they
/// differ in what stands before them.
std::vector<AlignLattice::Piece> AlignLattice::best_of(const std::vector<Piece>& pieces,
                                                       std::int64_t t) const {
  const auto key = [&](const Piece& piece) {
    return std::tuple(t - piece.start, orders_.nodes[at(piece.node)].label, !piece.goes_on);
  };
  std::vector<Piece> best;
  for (Piece piece : pieces) {
    const LabelColumn& label = column(piece.node);
    const double value = value_[at(piece.node)].at(t);
    const double after = label.content[at(t)] + label.end[at(t)];
    std::int64_t d = piece.full ? label.durations.longest : label.durations.shortest;
    for (; !piece.full && d < label.durations.longest; ++d)
      if ((inside_[at(piece.node)].at(t - d) + label.durations.of(d)) + after == value) break;
    piece.start = t - d;
    if (!best.empty() && key(best.front()) < key(piece)) continue;
    if (!best.empty() && key(piece) < key(best.front())) best.clear();
    best.push_back(piece);
  }
  return best;
}

/// What may stand before a piece on the best path.
void AlignLattice::add_pieces_before(const Piece& piece, std::vector<Piece>& found) const {
  const LabelColumn& label = column(piece.node);
  const std::int64_t t = piece.start;
  const double self = repeat(piece.node, t) + label.self;
  const double first =
      t <= frames_[at(piece.node)].last_enter ? enter<true>(piece.node, t) : kNegInf;
  const double best = std::max(first, self);
  const auto add = [&](const Piece& other) {
    if (std::ranges::find(found, other) == found.end()) found.push_back(other);
  };
  for (const Before& from : before_[at(piece.node)])
    if (value_[at(from.node)].at(t) + from.transition == best) add({from.node});
  if (self == best) add({piece.node, -1, true, label.rule == PieceRule::kAfterFull});
}

void AlignLattice::find_best(Alignment& alignment) {
  const auto places = static_cast<double>(orders_.nodes.size());
  const double rounding = 1.0 + 1e-6 * static_cast<double>(length_);
  alignment.score = forward_within<true>(10.0 + 0.2 * places, rounding, kNegInf);
  if (alignment.score == kNegInf) {
    alignment.status = RowStatus::kNoPath;
    alignment.log_partition = kNegInf;
    return;
  }
  std::vector<Piece> ends;
  for (std::size_t n = 0; n < orders_.nodes.size(); ++n)
    if (orders_.nodes[n].last &&
        value_[n].at(length_) + final_[at(orders_.nodes[n].label)] == alignment.score)
      ends.push_back({static_cast<std::int32_t>(n)});
  for (std::int64_t t = length_; t > 0;) {
    const std::vector<Piece> pieces = best_of(ends, t);
    const Piece& piece = pieces.front();
    if (!piece.goes_on) alignment.segments.push_back({t, 0, orders_.nodes[at(piece.node)].label});
    AlignedSegment& segment = alignment.segments.back();
    segment.duration += t - piece.start;
    segment.start = t = piece.start;
    ends.clear();
    for (const Piece& one : pieces)
      if (t > 0) add_pieces_before(one, ends);
  }
  std::ranges::reverse(alignment.segments);
}

}  // namespace segfuse::semicrf
