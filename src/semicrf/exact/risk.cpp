// The segmentation with the best expected boundary F1. The ratio 2 found / (boundaries + expected)
// is maximised by maximising 2 found - lambda boundaries for a rising lambda, the best ratio so
// far, until no segmentation does better (Dinkelbach 1967).

#include <fmt/core.h>

#include <algorithm>

#include "base/sizes.h"
#include "segfuse/error.h"
#include "semicrf/exact/inference.h"
#include "semicrf/exact/segment_list.h"

namespace segfuse::semicrf {
namespace {

/// Which segments and transitions have a finite score. Where all have, one label stands for all.
class Allowed {
 public:
  explicit Allowed(const LatticeInput& input)
      : x_(input), stride_(input.model.dims.stride), free_(all_finite()) {}

  std::int64_t labels() const { return free_ ? 1 : x_.model.dims.classes; }
  /// Most frames of a segment.
  std::int64_t longest() const {
    return x_.tail == nullptr ? x_.model.dims.max_duration : x_.row.length;
  }
  /// Everything about segment [s, e) but its frames and its transition.
  bool segment(std::int64_t s, std::int64_t e, std::int64_t c) const {
    if (free_) return true;
    const std::int64_t longest = x_.model.dims.max_duration;
    const std::int64_t k = std::min(e - s, longest);
    return x_.model.duration[(k - 1) * stride_ + c] > kNegInf &&
           x_.row.segments(s, k, c) > kNegInf && (e - s <= longest || x_.tail[c] > kNegInf) &&
           finite(x_.row.start, s, c) && finite(x_.row.end, e - 1, c) &&
           (s > 0 || x_.model.initial[c] > kNegInf) &&
           (e < x_.row.length || x_.model.final[c] > kNegInf);
  }
  bool frame(std::int64_t t, std::int64_t c) const {
    return free_ || finite(x_.row.emission, t, c);
  }
  bool frames(std::int64_t s, std::int64_t e, std::int64_t c) const {
    for (std::int64_t t = s; t < e && !free_; ++t)
      if (!frame(t, c)) return false;
    return true;
  }
  /// Into a segment of label c with d frames from s on.
  bool transition(std::int64_t s, std::int64_t d, std::int64_t from, std::int64_t c) const {
    if (free_) return true;
    if (x_.row.transitions(s, from, c) == kNegInf) return false;
    const std::int64_t k = std::min(d, x_.model.dims.max_duration);
    return x_.model.transition_slice(k - 1)[from * stride_ + c] > kNegInf;
  }

 private:
  bool finite(const double* frames, std::int64_t t, std::int64_t c) const {
    return frames == nullptr || frames[t * stride_ + c] > kNegInf;
  }
  bool all_finite() const {
    const auto table = [&](const double* rows, std::int64_t n) {
      for (std::int64_t i = 0; rows != nullptr && i < n; ++i)
        for (std::int64_t c = 0; c < x_.model.dims.classes; ++c)
          if (rows[i * stride_ + c] == kNegInf) return false;
      return true;
    };
    const Model& m = x_.model;
    if (x_.row.has_tables()) return false;
    return table(m.transition.data(), m.dims.slices() * m.dims.classes) &&
           table(m.duration.data(), m.dims.max_duration) && table(m.initial.data(), 1) &&
           table(m.final.data(), 1) && table(x_.row.emission, x_.row.length) &&
           table(x_.row.start, x_.row.length) && table(x_.row.end, x_.row.length) &&
           table(x_.tail, 1);
  }

  const LatticeInput& x_;
  std::int64_t stride_;
  bool free_;
};

/// Expected boundaries found by boundaries at given places.
class Gain {
 public:
  Gain(const LatticeInput& input, const RowExpectations& e, std::int64_t tolerance)
      : length_(input.row.length), tolerance_(tolerance), below_(at(length_) + 1, 0.0) {
    const Dims& dims = input.model.dims;
    for (std::int64_t t = 0; t < length_; ++t) {
      below_[at(t + 1)] = below_[at(t)];
      for (std::int64_t c = 0; c < dims.classes; ++c)
        below_[at(t + 1)] += e.start[t * dims.stride + c];
    }
  }
  /// All expected boundaries.
  double total() const { return below_.back(); }
  /// Those at s .. e-1 that a boundary at s or at e finds; the row's end is none.
  double operator()(std::int64_t s, std::int64_t e) const {
    const std::int64_t left = std::min(s + tolerance_ + 1, e);
    const std::int64_t right = e < length_ ? std::max(e - tolerance_, left) : e;
    return below_[at(left)] - below_[at(s)] + below_[at(e)] - below_[at(right)];
  }

 private:
  std::int64_t length_;
  std::int64_t tolerance_;
  std::vector<double> below_;  ///< [t]: expected boundaries before t
};

/// The best boundaries for one lambda.
class BoundarySearch {
 public:
  BoundarySearch(const LatticeInput& input, const Gain& gain)
      : x_(input),
        gain_(gain),
        allowed_(input),
        labels_(allowed_.labels()),
        by_duration_(labels_ > 1 && input.model.dims.by_duration) {}

  /// Ends of the segments, from the first; maximises 2 found - lambda segments.
  std::vector<std::int64_t> best(double lambda) {
    const std::int64_t length = x_.row.length;
    value_.assign(at((length + 1) * labels_), kNegInf);
    start_.assign(value_.size(), 0);
    before_.assign(value_.size(), 0);
    entry_.assign(value_.size(), {kNegInf, 0});
    for (std::int64_t c = 0; c < labels_; ++c) entry_[at(c)].first = 0.0;
    for (std::int64_t t = 1; t <= length; ++t) {
      for (std::int64_t c = 0; c < labels_; ++c) arrive(t, c, lambda);
      for (std::int64_t c = 0; t < length && c < labels_ && !by_duration_; ++c)
        entry_[at(t * labels_ + c)] = best_entry(t, 1, c);
    }
    std::int64_t c = 0;
    for (std::int64_t other = 1; other < labels_; ++other)
      if (value_[at(length * labels_ + other)] > value_[at(length * labels_ + c)]) c = other;
    std::vector<std::int64_t> ends;
    for (std::int64_t t = length; t > 0;) {
      ends.push_back(t);
      const std::size_t i = at(t * labels_ + c);
      t = start_[i];
      c = before_[i];
    }
    std::reverse(ends.begin(), ends.end());
    return ends;
  }
  const Allowed& allowed() const { return allowed_; }

 private:
  void arrive(std::int64_t t, std::int64_t c, double lambda) {
    const std::size_t to = at(t * labels_ + c);
    for (std::int64_t s = t - 1; s >= std::max<std::int64_t>(0, t - allowed_.longest()); --s) {
      if (!allowed_.frame(s, c)) return;
      if (allowed_.segment(s, t, c)) enter(s, t, c, 2.0 * gain_(s, t) - lambda, to);
      if (x_.is_forced(s)) return;
    }
  }
  void enter(std::int64_t s, std::int64_t t, std::int64_t c, double score, std::size_t to) {
    const auto [before, from] =
        by_duration_ && s > 0 ? best_entry(s, t - s, c) : entry_[at(s * labels_ + c)];
    if (before + score <= value_[to]) return;
    value_[to] = before + score;
    start_[to] = s;
    before_[to] = from;
  }
  /// The best value at s that may go on with d frames of label c, and its label.
  std::pair<double, std::int64_t> best_entry(std::int64_t s, std::int64_t d, std::int64_t c) const {
    std::pair<double, std::int64_t> best{kNegInf, 0};
    for (std::int64_t from = 0; from < labels_; ++from) {
      const double value = value_[at(s * labels_ + from)];
      if (value > best.first && allowed_.transition(s, d, from, c)) best = {value, from};
    }
    return best;
  }

  const LatticeInput& x_;
  const Gain& gain_;
  Allowed allowed_;
  std::int64_t labels_;
  bool by_duration_;
  std::vector<double> value_;
  std::vector<std::pair<double, std::int64_t>> entry_;  ///< by the label that goes on
  std::vector<std::int64_t> start_;
  std::vector<std::int64_t> before_;
};

double f1_of(const Gain& gain, const std::vector<std::int64_t>& ends) {
  double found = 0.0;
  std::int64_t s = 0;
  for (const std::int64_t e : ends) {
    found += gain(s, e);
    s = e;
  }
  return 2.0 * found / (static_cast<double>(ends.size()) + gain.total());
}

/// The labels of given segments with the most expected right frames, of those that are possible.
std::vector<Piece> label_segments(const LatticeInput& x, const RowExpectations& e,
                                  const Allowed& allowed, const std::vector<std::int64_t>& ends) {
  const std::int64_t classes = x.model.dims.classes;
  const auto n = static_cast<std::int64_t>(ends.size());
  std::vector<double> value(at(n * classes), kNegInf);
  std::vector<std::int64_t> before(value.size(), 0);
  for (std::int64_t i = 0; i < n; ++i) {
    const std::int64_t s = i == 0 ? 0 : ends[at(i - 1)];
    const std::int64_t end = ends[at(i)];
    for (std::int64_t c = 0; c < classes; ++c) {
      if (!allowed.segment(s, end, c) || !allowed.frames(s, end, c)) continue;
      double right = 0.0;
      for (std::int64_t t = s; t < end; ++t) right += e.label[t * x.model.dims.stride + c];
      double& best = value[at(i * classes + c)];
      if (i == 0) best = right;
      for (std::int64_t from = 0; i > 0 && from < classes; ++from) {
        const double score = value[at((i - 1) * classes + from)] + right;
        if (score <= best || !allowed.transition(s, end - s, from, c)) continue;
        best = score;
        before[at(i * classes + c)] = from;
      }
    }
  }
  const auto last = value.end() - classes;
  std::int64_t c = std::max_element(last, value.end()) - last;
  std::vector<Piece> path(at(n));
  for (std::int64_t i = n - 1; i >= 0; --i) {
    const std::int64_t s = i == 0 ? 0 : ends[at(i - 1)];
    path[at(i)] = {static_cast<std::int32_t>(s), static_cast<std::int32_t>(ends[at(i)] - s),
                   static_cast<std::int32_t>(c)};
    c = before[at(i * classes + c)];
  }
  return path;
}

}  // namespace

template <class T>
void Inference::minimum_risk(const Potentials<T>& potentials, const Scope& scope,
                             std::int64_t tolerance, Segmentations& best,
                             const View<double, 1>& f1) {
  const Dims dims = check_with_tables(potentials);
  check_scope(scope, dims, potentials.lengths);
  check_vector("f1", f1.empty(), f1.extent(0), dims.batch);
  if (tolerance < 0) throw UsageError(fmt::format("semicrf: tolerance {} is negative", tolerance));
  ScopedModel model;
  load_scoped(potentials, scope, dims, model);
  std::vector<std::vector<Piece>> rows(at(dims.batch));
  state_->for_rows(0, dims.batch, [&](std::int64_t b, LatticeWorkspace& w) {
    load_scoped_row(potentials, scope.constraints, dims, b, w.scoped);
    const bool possible = forward_of(model, w.scoped, w.lattice) > kNegInf;
    set_element(f1, b, possible ? 1.0 : 0.0);
    if (!possible || w.scoped.row.length == 0) return;
    const RowExpectations& e = counts_of(model, w.scoped, {true, false, false}, w);
    const LatticeInput input = lattice_of(model, w.scoped);
    const Gain gain(input, e, std::min(tolerance, input.row.length));
    BoundarySearch search(input, gain);
    std::vector<std::int64_t> ends = search.best(0.0);
    double score = f1_of(gain, ends);
    while (true) {
      std::vector<std::int64_t> next = search.best(score);
      const double better = f1_of(gain, next);
      if (better <= score) break;
      score = better;
      ends = std::move(next);
    }
    set_element(f1, b, score);
    rows[at(b)] = label_segments(input, e, search.allowed(), ends);
  });
  best.clear();
  for (const std::vector<Piece>& row : rows) {
    for (const Piece& s : row) best.append(s.start, s.duration, s.label);
    best.end_row();
  }
}

template void Inference::minimum_risk(const Potentials<float>&, const Scope&, std::int64_t,
                                      Segmentations&, const View<double, 1>&);
template void Inference::minimum_risk(const Potentials<double>&, const Scope&, std::int64_t,
                                      Segmentations&, const View<double, 1>&);

}  // namespace segfuse::semicrf
