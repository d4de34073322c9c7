#include "semicrf/align/lattice.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <tuple>

#include "segfuse/error.h"

namespace segfuse::semicrf {
namespace {

std::size_t at(std::int64_t i) { return static_cast<std::size_t>(i); }

}  // namespace

AlignLattice::AlignLattice(const Model& model, const Row& row, const LabelOrders& orders,
                           const AlignOptions& options)
    : orders_(orders),
      length_(row.length),
      scaled_(options.algorithm == AlignAlgorithm::kFast),
      columns_(at(model.dims.classes)),
      nodes_of_(at(model.dims.classes)),
      before_(orders.nodes.size()),
      after_(orders.nodes.size()),
      frames_(orders.nodes.size()),
      value_(orders.nodes.size()),
      inside_(orders.nodes.size()) {
  load(model, row, options);
  find_frames();
  check_memory(options.most_bytes);
}

void AlignLattice::load(const Model& model, const Row& row, const AlignOptions& options) {
  const Dims& dims = model.dims;
  for (const LabelOrders::Node& node : orders_.nodes) {
    LabelColumn& column = columns_[at(node.label)];
    if (column.used) continue;
    load_column(row, dims.stride, node.label);
    column.durations = DurationTable(model, node.label);
    if (!options.pieces.empty()) column.rule = options.pieces[at(node.label)];
    column.self = model.transition[node.label * dims.stride + node.label];
    if (column.self == kNegInf) column.rule = PieceRule::kOne;
  }
  for (std::size_t n = 0; n < orders_.nodes.size(); ++n) {
    const LabelOrders::Node& node = orders_.nodes[n];
    nodes_of_[at(node.label)].push_back(static_cast<std::int32_t>(n));
    for (const std::int32_t next : node.next) {
      after_[n].push_back(
          model.transition[node.label * dims.stride + orders_.nodes[at(next)].label]);
      before_[at(next)].push_back({static_cast<std::int32_t>(n), after_[n].back()});
    }
  }
  initial_.assign(model.initial.data(), model.initial.data() + dims.classes);
  final_.assign(model.final.data(), model.final.data() + dims.classes);
}

void AlignLattice::load_column(const Row& row, std::int64_t stride, std::int64_t label) {
  LabelColumn& column = columns_[at(label)];
  column.used = true;
  column.content.assign(at(length_ + 1), 0.0);
  column.start.assign(at(length_ + 1), 0.0);
  column.end.assign(at(length_ + 1), 0.0);
  column.since.assign(at(length_ + 1), 0);
  column.until.assign(at(length_ + 1), length_);
  for (std::int64_t t = 0; t < length_; ++t) {
    const double score = row.emission[t * stride + label];
    const bool forbidden = score == kNegInf;
    column.content[at(t + 1)] = column.content[at(t)] + (forbidden ? 0.0 : score);
    column.since[at(t + 1)] = forbidden ? t + 1 : column.since[at(t)];
    if (row.start != nullptr) column.start[at(t)] = row.start[t * stride + label];
    if (row.end != nullptr) column.end[at(t + 1)] = row.end[t * stride + label];
  }
  for (std::int64_t t = length_ - 1; t >= 0; --t)
    column.until[at(t)] = column.since[at(t + 1)] == t + 1 ? t : column.until[at(t + 1)];
}

/// What can be reached from the beginning, and from where the end can be reached.
void AlignLattice::find_frames() {
  const auto count = static_cast<std::int32_t>(orders_.nodes.size());
  const auto longest = [&](const LabelColumn& c) {
    return c.in_pieces() ? length_ : c.durations.longest;
  };
  for (std::int32_t n = 0; n < count; ++n) {
    const LabelColumn& label = column(n);
    NodeFrames& mine = frames_[at(n)];
    mine = {orders_.nodes[at(n)].first ? 0 : length_ + 1, orders_.nodes[at(n)].first ? 0 : -1, -1,
            length_ + 1, -1};
    for (const Before& from : before_[at(n)]) {
      const NodeFrames& theirs = frames_[at(from.node)];
      if (from.transition == kNegInf || theirs.empty()) continue;
      mine.enter = std::min(mine.enter, theirs.first_end);
      mine.last_enter = std::max(mine.last_enter, theirs.last_end);
    }
    if (mine.last_enter < mine.enter || label.durations.longest == 0) continue;
    mine.first_end = mine.enter + label.durations.shortest;
    mine.last_end = std::min(length_, mine.last_enter + longest(label));
  }
  for (std::int32_t n = count - 1; n >= 0; --n) {
    const LabelColumn& label = column(n);
    NodeFrames& mine = frames_[at(n)];
    std::int64_t first = orders_.nodes[at(n)].last ? length_ : length_ + 1;
    std::int64_t last = orders_.nodes[at(n)].last ? length_ : -1;
    for (const std::int32_t next : orders_.nodes[at(n)].next) {
      const NodeFrames& theirs = frames_[at(next)];
      if (theirs.empty()) continue;
      first = std::min(first, theirs.enter);
      last = std::max(last, theirs.last_enter);
    }
    mine.first_end = std::max(mine.first_end, first);
    mine.last_end = std::min(mine.last_end, last);
    mine.enter = std::max(mine.enter, mine.first_end - longest(label));
    mine.last_start = mine.last_end - label.durations.shortest;
    mine.last_enter = std::min(mine.last_enter, mine.last_start);
    if (mine.empty()) continue;
    if (label.in_pieces())
      mine.first_end = mine.enter + label.durations.shortest;
    else
      mine.last_start = mine.last_enter;
  }
}

void AlignLattice::check_memory(std::int64_t most_bytes) const {
  std::int64_t cells = 0;
  for (const NodeFrames& f : frames_)
    if (!f.empty()) cells += (f.last_end - f.first_end) + (f.last_start - f.enter) + 2;
  if (cells <= most_bytes / static_cast<std::int64_t>(sizeof(double))) return;
  throw DataError(
      fmt::format("aligning {} places of labels with {} frames needs {:.1f} GB of memory, at most "
                  "{:.1f} GB are "
                  "allowed; cut the recording and its order into parts",
                  orders_.nodes.size(), length_, static_cast<double>(cells) * 8e-9,
                  static_cast<double>(most_bytes) * 1e-9));
}

// --- sums and maxima ---------------------------------------------------------------------------

template <bool kMax>
double AlignLattice::enter(std::int32_t node, std::int64_t t) const {
  double sum = kNegInf;
  if (t == 0 && orders_.nodes[at(node)].first) sum = initial_[at(orders_.nodes[at(node)].label)];
  for (const Before& from : before_[at(node)])
    sum = join<kMax>(sum, value_[at(from.node)].at(t) + from.transition);
  return sum;
}

double AlignLattice::repeat(std::int32_t node, std::int64_t t) const {
  const LabelColumn& label = column(node);
  if (label.rule == PieceRule::kOne) return kNegInf;
  if (label.rule == PieceRule::kAny) return value_[at(node)].at(t);
  const std::int64_t full = label.durations.longest;
  const std::int64_t s = t - full;
  if (s < frames_[at(node)].enter || s < label.since[at(t)]) return kNegInf;
  return (inside_[at(node)].at(s) + label.durations.of(full)) +
         (label.content[at(t)] + label.end[at(t)]);
}

template <bool kMax>
void AlignLattice::forward(std::int32_t node) {
  const NodeFrames& f = frames_[at(node)];
  const LabelColumn& label = column(node);
  Stretch& value = value_[at(node)];
  Stretch& inside = inside_[at(node)];
  value.reset(f.first_end, f.empty() ? f.first_end - 1 : f.last_end);
  inside.reset(f.enter, f.empty() ? f.enter - 1 : f.last_start);
  if (f.empty()) return;
  window_.reset(label.durations, scaled_);
  const std::int64_t end = std::min(f.last_end, f.last_start + label.durations.longest);
  for (std::int64_t t = f.enter; t <= end; ++t) {
    if (t >= f.first_end) {
      const std::int64_t n = t - std::max(f.enter, label.since[at(t)]);
      value.set(
          t, (kMax ? window_.max(n) : window_.sum(n)) + (label.content[at(t)] + label.end[at(t)]));
    }
    double before = t <= f.last_enter ? enter<kMax>(node, t) : kNegInf;
    if (label.in_pieces() && t >= f.first_end && t <= f.last_start)
      before = join<kMax>(before, repeat(node, t) + label.self);
    const double q = before + (label.start[at(t)] - label.content[at(t)]);
    inside.set(t, q);
    window_.push(q);
  }
}

template <bool kMax>
double AlignLattice::total() const {
  double sum = kNegInf;
  for (std::size_t n = 0; n < orders_.nodes.size(); ++n)
    if (orders_.nodes[n].last)
      sum = join<kMax>(sum, value_[n].at(length_) + final_[at(orders_.nodes[n].label)]);
  return sum;
}

double AlignLattice::leave(std::int32_t node, std::int64_t t) const {
  const LabelOrders::Node& mine = orders_.nodes[at(node)];
  double sum = t == length_ && mine.last ? final_[at(mine.label)] : kNegInf;
  for (std::size_t i = 0; i < mine.next.size(); ++i) {
    const std::int32_t next = mine.next[i];
    if (t <= frames_[at(next)].last_enter)
      sum = log_add(sum, after_[at(node)][i] + inside_[at(next)].at(t));
  }
  return sum;
}

void AlignLattice::backward(std::int32_t node) {
  const NodeFrames& f = frames_[at(node)];
  const LabelColumn& label = column(node);
  Stretch& inside = inside_[at(node)];
  inside.reset(f.enter, f.empty() ? f.enter - 1 : f.last_start);
  if (f.empty()) return;
  window_.reset(label.durations, scaled_);
  const std::int64_t full = label.durations.longest;
  for (std::int64_t t = f.last_end; t >= f.enter; --t) {
    if (t <= f.last_start) {
      const std::int64_t end = std::min(f.last_end, label.until[at(t)]);
      double from = window_.sum(end - t) - label.content[at(t)];
      if (label.rule == PieceRule::kAfterFull && t + full <= std::min(end, f.last_start))
        from = log_add(from, (label.frames(t, t + full) + label.durations.of(full)) +
                                 (label.self + inside.at(t + full)));
      inside.set(t, label.start[at(t)] + from);
    }
    if (t == 0) return;
    double rest = t >= f.first_end ? leave(node, t) : kNegInf;
    if (label.rule == PieceRule::kAny) rest = log_add(rest, label.self + inside.at(t));
    window_.push(rest + (label.content[at(t)] + label.end[at(t)]));
  }
}

void AlignLattice::count(std::int32_t node, double log_partition) {
  const NodeFrames& f = frames_[at(node)];
  std::vector<double>& changes = changes_[at(orders_.nodes[at(node)].label)];
  const auto probability = [&](double score) {  // less than 1e-26 is not seen beside 1
    return score - log_partition < -60.0 ? 0.0 : std::exp(score - log_partition);
  };
  for (std::int64_t t = f.enter; t <= f.last_enter; ++t) {
    const double from = inside_[at(node)].at(t);
    if (from > kNegInf) changes[at(t)] += probability(enter<false>(node, t) + from);
  }
  for (std::int64_t t = f.first_end; t <= f.last_end; ++t) {
    const double until = value_[at(node)].at(t);
    if (until > kNegInf) changes[at(t)] -= probability(until + leave(node, t));
  }
}

void AlignLattice::find_posteriors(Alignment& alignment) {
  const auto nodes = static_cast<std::int32_t>(orders_.nodes.size());
  for (std::int32_t n = 0; n < nodes; ++n) forward<false>(n);
  const double z = alignment.log_partition = total<false>();
  changes_.assign(columns_.size(), {});
  for (std::size_t c = 0; c < columns_.size(); ++c)
    if (columns_[c].used) changes_[c].assign(at(length_ + 1), 0.0);
  for (std::int32_t n = nodes - 1; n >= 0; --n) {
    if (!frames_[at(n)].empty()) {
      backward(n);
      count(n, z);
    } else {
      inside_[at(n)].reset(0, -1);
    }
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

// --- the best path ------------------------------------------------------------------------------

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
  for (std::size_t n = 0; n < orders_.nodes.size(); ++n)
    forward<true>(static_cast<std::int32_t>(n));
  alignment.score = total<true>();
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
