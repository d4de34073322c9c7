// Nodes whose frames are worked on many at a time, in vectors.

#include <algorithm>
#include <cmath>

#include "base/sizes.h"
#include "semicrf/align/lattice.h"

namespace segfuse::semicrf {
namespace {

/// Boundaries of [first, end) that a stretch has.
struct Overlap {
  std::int64_t first, end;
  bool empty() const { return first >= end; }
  std::int64_t size() const { return end - first; }
};

Overlap overlap(std::int64_t from, std::int64_t until, const Stretch& other) {
  return {std::max(from, other.first()), std::min(until, other.first() + other.size())};
}

/// The first and the last of those that matter.
struct Kept {
  std::int64_t first = -1;
  std::int64_t last = -1;
  void see(std::int64_t i, bool matters) {
    if (!matters) return;
    if (first < 0) first = i;
    last = i;
  }
  bool empty() const { return first < 0; }
  std::int64_t size() const { return last - first + 1; }
};

/// Adds from[i] + shift to what stands there: the first of several is all that does.
template <bool kMax>
void join_each(const double* from, double shift, std::int64_t n, bool is_first, double* into) {
  if (is_first) {
    for (std::int64_t i = 0; i < n; ++i) into[i] = from[i] + shift;
  } else if (kMax) {
    for (std::int64_t i = 0; i < n; ++i) into[i] = std::max(into[i], from[i] + shift);
  } else {
    log_add_each(from, shift, n, into);
  }
}

}  // namespace

// At boundary 0 nothing can have ended, and at the last one nothing can start: what stands there
// by itself meets nothing else.

template <bool kMax>
void AlignLattice::enter_band(std::int32_t node, std::int64_t first, std::span<double> out) const {
  std::ranges::fill(out, kNegInf);
  const std::int64_t end = std::min(first + std::ssize(out), frames_[at(node)].last_enter + 1);
  if (first == 0 && !out.empty() && orders_.nodes[at(node)].first)
    out[0] = initial_[at(orders_.nodes[at(node)].label)];
  bool is_first = true;
  for (const Before& from : before_[at(node)]) {
    const Stretch& value = value_[at(from.node)];
    const Overlap both = overlap(first, end, value);
    if (both.empty()) continue;
    join_each<kMax>(value.from(both.first), from.transition, both.size(), is_first,
                    out.data() + (both.first - first));
    is_first = false;
  }
}

void AlignLattice::leave_band(std::int32_t node, std::int64_t first, std::span<double> out) const {
  const LabelOrders::Node& mine = orders_.nodes[at(node)];
  std::ranges::fill(out, kNegInf);
  if (mine.last && first <= length_ && length_ < first + std::ssize(out))
    out[at(length_ - first)] = final_[at(mine.label)];
  bool is_first = true;
  for (std::size_t i = 0; i < mine.next.size(); ++i) {
    const auto next = at(mine.next[i]);
    const std::int64_t end = std::min(first + std::ssize(out), frames_[next].last_enter + 1);
    const Overlap both = overlap(first, end, inside_[next]);
    if (both.empty()) continue;
    join_each<false>(inside_[next].from(both.first), after_[at(node)][i], both.size(), is_first,
                     out.data() + (both.first - first));
    is_first = false;
  }
}

/// After a piece of full length another may start: `starts_` from `from` on get what such pieces
/// add, which began a full length before. No more than a full length at a time.
template <bool kMax>
void AlignLattice::repeat_band(std::int32_t node, std::int64_t from) {
  const LabelColumn& label = column(node);
  const std::int64_t full = label.durations.longest;
  const std::int64_t enter = frames_[at(node)].enter;
  shares_.clear();
  for (std::int64_t t = from; t < enter + std::ssize(starts_); ++t)
    shares_.push_back((starts_[at(t - full - enter)] + label.durations.of(full)) +
                      (label.content[at(t)] + label.end[at(t)]));
  join_each<kMax>(shares_.data(), label.self, std::ssize(shares_), false,
                  starts_.data() + (from - enter));
}

template <bool kMax>
void AlignLattice::forward_band(std::int32_t node) {
  const NodeFrames& f = frames_[at(node)];
  const LabelColumn& label = column(node);
  const std::int64_t full = label.durations.longest;
  const RestBound* bound = bound_for<kMax>();
  const double* rest =
      bound != nullptr ? bound->after[at(orders_.nodes[at(node)].label)].data() : nullptr;
  Kept kept;
  starts_.clear();
  ends_.clear();
  // Starts of a full length of frames, and the ends behind each of them.
  for (std::int64_t first = f.enter; !f.empty() && first < f.last_end; first += full) {
    if (first - std::max(f.last_enter, kept.last) >= full) break;  // nothing leads further
    const std::int64_t begin = first - f.enter;
    const std::int64_t known = std::ssize(starts_);
    starts_.resize(at(std::max(known, std::min(begin + full, f.last_start + 1 - f.enter))));
    const std::span<double> starts = std::span(starts_).subspan(at(known));
    enter_band<kMax>(node, first, starts);
    if (label.in_pieces() && begin > 0 && !starts.empty()) repeat_band<kMax>(node, first);
    for (std::size_t i = 0; i < starts.size(); ++i)
      starts[i] += label.start[at(first) + i] - label.content[at(first) + i];
    const std::int64_t first_end = std::max(f.first_end, first + 1);
    const std::int64_t last_end = std::min(f.last_end, first + full);
    if (first_end > last_end) continue;
    ends_.resize(at(last_end - f.first_end + 1));
    const std::span<double> ends = std::span(ends_).subspan(at(first_end - f.first_end));
    // Those that reach here start in this part or the one before.
    const std::int64_t before = std::clamp<std::int64_t>(begin - full, 0, std::ssize(starts_));
    const std::span<const double> in = std::span(starts_).subspan(at(before));
    if (kMax)
      band_.maxima(label.durations, in, first_end - f.enter - before, ends);
    else
      band_.sums(label.durations, in, first_end - f.enter - before, ends);
    for (std::int64_t t = first_end; t <= last_end; ++t) {
      double& sum = ends[at(t - first_end)];
      sum += label.content[at(t)] + label.end[at(t)];
      kept.see(t, rest == nullptr || sum + rest[t] >= least_);
    }
  }
  if (kept.empty()) {
    value_[at(node)].reset(0, -1);
    inside_[at(node)].reset(0, -1);
    return keep(node, length_ + 1, -1);
  }
  const std::int64_t last_start = std::min(f.last_start, kept.last - label.durations.shortest);
  value_[at(node)].assign(kept.first,
                          std::span(ends_).subspan(at(kept.first - f.first_end), at(kept.size())));
  inside_[at(node)].assign(f.enter, std::span(starts_).first(at(last_start - f.enter + 1)));
  keep(node, kept.first, kept.last);
}

void AlignLattice::backward_band(std::int32_t node, double log_partition) {
  NodeFrames& f = frames_[at(node)];
  const LabelColumn& label = column(node);
  const std::int64_t full = label.durations.longest;
  std::vector<double>& changes = changes_[at(orders_.nodes[at(node)].label)];
  const auto matters = [&](double score) { return score >= log_partition - kMargin; };
  const auto nothing = [&] {
    inside_[at(node)].reset(0, -1);
    f.enter = length_ + 1;
    f.last_enter = -1;
  };
  // Ends of the node's segments, and what follows them.
  Kept ends;
  ends_.resize(f.empty() ? 0 : at(f.last_end - f.first_end + 1));
  shares_.resize(ends_.size());
  leave_band(node, f.first_end, ends_);
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    shares_[i] = value_[at(node)].from(f.first_end)[i] + ends_[i];
    ends.see(f.first_end + static_cast<std::int64_t>(i), matters(shares_[i]));
  }
  exp_each(shares_.data(), log_partition, std::ssize(shares_), shares_.data());
  for (std::size_t i = 0; i < shares_.size(); ++i) changes[at(f.first_end) + i] -= shares_[i];
  const std::int64_t first_start =
      label.in_pieces() ? f.enter : std::max(f.enter, ends.first - full);
  const std::int64_t last_start = std::min(f.last_start, ends.last - label.durations.shortest);
  if (ends.empty() || first_start > last_start) return nothing();
  // What follows each start: one piece with such an end, from the last end to the first ...
  std::vector<double>& follows = shares_;
  follows.clear();
  for (std::int64_t t = ends.last; t >= ends.first; --t)
    follows.push_back(ends_[at(t - f.first_end)] + (label.content[at(t)] + label.end[at(t)]));
  starts_.resize(at(last_start - first_start + 1));
  band_.sums(label.durations, follows, ends.last - last_start, starts_);
  std::ranges::reverse(starts_);
  for (std::int64_t t = first_start; t <= last_start; ++t)
    starts_[at(t - first_start)] += label.start[at(t)] - label.content[at(t)];
  // ... or a full one and another start, from the last to the first.
  for (std::int64_t end = last_start + 1 - full; label.in_pieces() && end > first_start;) {
    const std::int64_t begin = std::max(first_start, end - full);
    shares_.clear();
    for (std::int64_t t = begin; t < end; ++t)
      shares_.push_back(label.start[at(t)] +
                        (label.frames(t, t + full) + label.durations.of(full)) +
                        (label.self + starts_[at(t + full - first_start)]));
    log_add_each(shares_.data(), 0.0, end - begin, starts_.data() + (begin - first_start));
    end = begin;
  }
  // What stands before, and with it the probability of a segment that starts there.
  ends_.resize(at(std::max<std::int64_t>(0, std::min(f.last_enter, last_start) - first_start + 1)));
  enter_band<false>(node, first_start, ends_);
  Kept starts;
  for (std::size_t i = 0; i < ends_.size(); ++i) {
    ends_[i] += starts_[i];
    starts.see(first_start + static_cast<std::int64_t>(i), matters(ends_[i]));
  }
  if (starts.empty()) return nothing();
  exp_each(ends_.data(), log_partition, std::ssize(ends_), ends_.data());
  for (std::size_t i = 0; i < ends_.size(); ++i) changes[at(first_start) + i] += ends_[i];
  inside_[at(node)].assign(
      starts.first, std::span(starts_).subspan(at(starts.first - first_start), at(starts.size())));
  f.enter = starts.first;
  f.last_enter = starts.last;
}

template void AlignLattice::forward_band<true>(std::int32_t);
template void AlignLattice::forward_band<false>(std::int32_t);

}  // namespace segfuse::semicrf
