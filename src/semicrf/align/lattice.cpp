#include "semicrf/align/lattice.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/sizes.h"
#include "segfuse/error.h"

namespace segfuse::semicrf {
namespace {

/// Of a path's share of all; less than 1e-26 is not seen beside 1.
double probability(double log_share) { return log_share < -60.0 ? 0.0 : std::exp(log_share); }

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
      reach_(orders.nodes.size()),
      frames_(orders.nodes.size()),
      most_cells_(options.most_bytes / static_cast<std::int64_t>(sizeof(double))),
      value_(orders.nodes.size()),
      inside_(orders.nodes.size()) {
  load(model, row, options);
  find_frames();
  if (!scaled_) return;
  std::vector<bool> in_pieces;
  for (const LabelColumn& label : columns_) in_pieces.push_back(label.in_pieces());
  bound_ = bound_of_sums(model, row, orders_, in_pieces);
  score_bound_ = bound_of_scores(model, row, orders_, in_pieces);
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
    column.forbids |= forbidden;
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
    NodeFrames& mine = reach_[at(n)];
    mine = {orders_.nodes[at(n)].first ? 0 : length_ + 1, orders_.nodes[at(n)].first ? 0 : -1, -1,
            length_ + 1, -1};
    for (const Before& from : before_[at(n)]) {
      const NodeFrames& theirs = reach_[at(from.node)];
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
    NodeFrames& mine = reach_[at(n)];
    std::int64_t first = orders_.nodes[at(n)].last ? length_ : length_ + 1;
    std::int64_t last = orders_.nodes[at(n)].last ? length_ : -1;
    for (const std::int32_t next : orders_.nodes[at(n)].next) {
      const NodeFrames& theirs = reach_[at(next)];
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

NodeFrames AlignLattice::frames_now(std::int32_t node) const {
  NodeFrames now = reach_[at(node)];
  if (now.empty()) return now;
  const LabelColumn& label = column(node);
  const bool first = orders_.nodes[at(node)].first;
  std::int64_t enter = first ? 0 : length_ + 1;
  std::int64_t last_enter = first ? 0 : -1;
  for (const Before& from : before_[at(node)]) {
    const NodeFrames& theirs = frames_[at(from.node)];
    if (from.transition == kNegInf || theirs.empty()) continue;
    enter = std::min(enter, theirs.first_end);
    last_enter = std::max(last_enter, theirs.last_end);
  }
  now.enter = std::max(now.enter, enter);
  now.last_enter = std::min(now.last_enter, last_enter);
  now.first_end = std::max(now.first_end, now.enter + label.durations.shortest);
  if (label.in_pieces()) return now;
  now.last_start = now.last_enter;
  now.last_end = std::min(now.last_end, now.last_start + label.durations.longest);
  return now;
}

/// Of what a forward pass found, these ends of pieces and what leads there.
void AlignLattice::keep(std::int32_t node, std::int64_t first_end, std::int64_t last_end) {
  NodeFrames& f = frames_[at(node)];
  f.first_end = first_end;
  f.last_end = last_end;
  f.last_start = std::min(f.last_start, last_end - column(node).durations.shortest);
  f.last_enter = std::min(f.last_enter, f.last_start);
  value_[at(node)].trim(f.first_end, f.last_end);
  inside_[at(node)].trim(f.enter, f.empty() ? f.enter - 1 : f.last_start);
  cells_ += value_[at(node)].size() + inside_[at(node)].size();
  if (cells_ > most_cells_)
    throw DataError(
        fmt::format("aligning {} places of labels with {} frames needs more than {:.1f} GB of "
                    "memory; cut the recording and its order into parts",
                    orders_.nodes.size(), length_, static_cast<double>(most_cells_) * 8e-9));
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
  frames_[at(node)] = frames_now(node);
  if (is_band(node)) return forward_band<kMax>(node);
  const NodeFrames& f = frames_[at(node)];
  const LabelColumn& label = column(node);
  Stretch& value = value_[at(node)];
  Stretch& inside = inside_[at(node)];
  const std::int64_t end = std::min(f.last_end, f.last_start + label.durations.longest);
  value.reset(f.first_end, f.first_end - 1);
  inside.reset(f.enter, f.enter - 1);
  const RestBound* bound = bound_for<kMax>();
  const double* rest =
      bound != nullptr ? bound->after[at(orders_.nodes[at(node)].label)].data() : nullptr;
  std::int64_t first_kept = length_ + 1;
  std::int64_t last_kept = -1;
  window_.reset(label.durations, scaled_);
  for (std::int64_t t = f.enter; !f.empty() && t <= end; ++t) {
    if (t >= f.first_end) {
      const std::int64_t n = t - std::max(f.enter, label.since[at(t)]);
      const double sum =
          (kMax ? window_.max(n) : window_.sum(n)) + (label.content[at(t)] + label.end[at(t)]);
      if (t <= f.last_end) value.append(sum);
      if (rest == nullptr || sum + rest[t] >= least_) {
        first_kept = std::min(first_kept, t);
        last_kept = t;
      } else if (t - std::max(f.last_enter, last_kept) >= label.durations.longest) {
        break;  // all that follows comes from what is left out
      }
    }
    double before = t <= f.last_enter ? enter<kMax>(node, t) : kNegInf;
    if (label.in_pieces() && t >= f.first_end && t <= f.last_start)
      before = join<kMax>(before, repeat(node, t) + label.self);
    const double q = before + (label.start[at(t)] - label.content[at(t)]);
    if (t <= f.last_start) inside.append(q);
    window_.push(q);
  }
  keep(node, first_kept, last_kept);
}

template <bool kMax>
double AlignLattice::total() const {
  double sum = kNegInf;
  for (std::size_t n = 0; n < orders_.nodes.size(); ++n)
    if (orders_.nodes[n].last)
      sum = join<kMax>(sum, value_[n].at(length_) + final_[at(orders_.nodes[n].label)]);
  return sum;
}

template <bool kMax>
double AlignLattice::run_forward(double least) {
  least_ = least;
  cells_ = 0;
  for (std::size_t n = 0; n < orders_.nodes.size(); ++n)
    forward<kMax>(static_cast<std::int32_t>(n));
  return total<kMax>();
}

template <bool kMax>
double AlignLattice::forward_within(double guess, double margin, double known) {
  if (const RestBound* bound = bound_for<kMax>()) {
    double least = std::max(bound->whole - guess, known) - margin;
    for (int tries = 0; tries < 8; ++tries) {
      const double found = run_forward<kMax>(least);
      if (std::max(known, found) - margin >= least) return found;
      least = found > kNegInf
                  ? found - margin
                  : std::max(bound->whole - 2.0 * (bound->whole - least), known - margin);
    }
  }
  return run_forward<kMax>(kNegInf);
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

void AlignLattice::backward(std::int32_t node, double log_partition) {
  if (is_band(node)) return backward_band(node, log_partition);
  NodeFrames& f = frames_[at(node)];
  const LabelColumn& label = column(node);
  const Stretch& value = value_[at(node)];
  Stretch& inside = inside_[at(node)];
  std::vector<double>& changes = changes_[at(orders_.nodes[at(node)].label)];
  inside.reset(f.enter, f.empty() ? f.enter - 1 : f.last_start);
  if (f.empty()) return;
  window_.reset(label.durations, scaled_);
  const std::int64_t full = label.durations.longest;
  const auto matters = [&](double score) { return !scaled_ || score >= log_partition - kMargin; };
  std::int64_t last_end = -1;  // that matters
  std::int64_t first_enter = length_ + 1;
  std::int64_t last_enter = -1;
  for (std::int64_t t = f.last_end; t >= f.enter; --t) {
    const double entered = t <= f.last_enter ? enter<false>(node, t) : kNegInf;
    if (t <= f.last_start && t < last_end && (label.in_pieces() || entered > kNegInf)) {
      const std::int64_t end = std::min(last_end, label.until[at(t)]);
      double from = window_.sum(end - t) - label.content[at(t)];
      if (label.rule == PieceRule::kAfterFull && t + full <= std::min(end, f.last_start))
        from = log_add(from, (label.frames(t, t + full) + label.durations.of(full)) +
                                 (label.self + inside.at(t + full)));
      inside.set(t, label.start[at(t)] + from);
      const double score = entered + inside.at(t);
      if (score > kNegInf) changes[at(t)] += probability(score - log_partition);
      if (matters(score)) {
        first_enter = t;
        last_enter = std::max(last_enter, t);
      }
    }
    if (t < f.first_end) {
      if (last_end >= 0) window_.push(kNegInf);
      continue;
    }
    double rest = leave(node, t);
    if (value.at(t) > kNegInf) changes[at(t)] -= probability(value.at(t) + rest - log_partition);
    if (label.rule == PieceRule::kAny) rest = log_add(rest, label.self + inside.at(t));
    if (last_end < 0 && !label.in_pieces() && !matters(value.at(t) + rest)) continue;
    last_end = std::max(last_end, t);
    window_.push(rest + (label.content[at(t)] + label.end[at(t)]));
  }
  if (!scaled_) return;
  f.enter = first_enter;
  f.last_enter = last_enter;
}

template double AlignLattice::forward_within<true>(double, double, double);
template double AlignLattice::forward_within<false>(double, double, double);
template double AlignLattice::enter<true>(std::int32_t, std::int64_t) const;
template double AlignLattice::enter<false>(std::int32_t, std::int64_t) const;

}  // namespace segfuse::semicrf
