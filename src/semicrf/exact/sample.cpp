// Exact draws: forward sums, then segments from the last to the first.

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/rng.h"
#include "segfuse/error.h"
#include "semicrf/exact/inference.h"
#include "semicrf/exact/segment_list.h"

namespace segfuse::semicrf {
namespace {

/// Draws from one row after its forward pass.
class Sampler {
 public:
  Sampler(const LatticeInput& input, const Lattice& lattice, Rng& rng)
      : x_(input), lattice_(lattice), rng_(rng), stride_(input.model.dims.stride) {}

  std::vector<Piece> draw() {
    std::vector<Piece> path;
    std::int64_t t = x_.row.length;
    std::int64_t c =
        draw_label(t, x_.model.final.data(), 1,
                   lattice_.log_partition - lattice_.base[static_cast<std::size_t>(t)]);
    while (true) {
      const std::int64_t d = draw_duration(t, c);
      t -= d;
      path.push_back({static_cast<std::int32_t>(t), static_cast<std::int32_t>(d),
                      static_cast<std::int32_t>(c)});
      if (t == 0) break;
      const std::int64_t k = std::min(d, x_.model.dims.max_duration);
      const double start = x_.row.start == nullptr ? 0.0 : x_.row.start[t * stride_ + c];
      const double total = lattice_enter(x_, lattice_, t, k, c) - start;
      const double* before = x_.model.transition_slice(k - 1) + c;
      c = x_.row.transitions.present() ? draw_label(t, timed(t, before, c).data(), 1, total)
                                       : draw_label(t, before, stride_, total);
    }
    std::reverse(path.begin(), path.end());
    return path;
  }

 private:
  /// A choice among options that are shown one by one, with logarithms that sum to `total`.
  class Choice {
   public:
    Choice(double total, Rng& rng) : total_(total), left_(rng.uniform()) {}
    /// Whether to go on: false once an option is chosen.
    bool offer(std::int64_t option, double score) {
      if (score == kNegInf) return true;
      chosen_ = option;  // the last possible one, should rounding leave something at the end
      left_ -= std::exp(score - total_);
      return left_ >= 0.0;
    }
    std::int64_t chosen() const { return chosen_; }

   private:
    double total_;
    double left_;
    std::int64_t chosen_ = -1;
  };

  /// The transitions into label c with the scores of boundary t.
  std::vector<double> timed(std::int64_t t, const double* transition, std::int64_t c) const {
    std::vector<double> scores;
    for (std::int64_t from = 0; from < x_.model.dims.classes; ++from)
      scores.push_back(transition[from * stride_] + x_.row.transitions(t, from, c));
    return scores;
  }

  /// The label of the segment that ends at t; after[c * step] is the score of what follows it.
  std::int64_t draw_label(std::int64_t t, const double* after, std::int64_t step, double total) {
    Choice choice(total, rng_);
    const double* value = lattice_.value.data() + t * stride_;
    for (std::int64_t c = 0; c < x_.model.dims.classes; ++c)
      if (!choice.offer(c, value[c] + after[c * step])) break;
    return choice.chosen();
  }

  /// The frames of a segment of label c that ends at t.
  std::int64_t draw_duration(std::int64_t t, std::int64_t c) {
    const std::int64_t longest = x_.model.dims.max_duration;
    const double end = x_.row.end == nullptr ? 0.0 : x_.row.end[(t - 1) * stride_ + c];
    Choice choice(lattice_.value[t * stride_ + c] - end, rng_);
    bool open = x_.tail != nullptr;
    for_segments_ending(x_, lattice_, t, c, [&](std::int64_t k, double score) {
      const bool goes_on = (x_.tail != nullptr && k == longest) || choice.offer(k, score);
      open = open && goes_on;
      return goes_on;
    });
    if (open) choice.offer(longest, lattice_.open[t * stride_ + c]);
    if (x_.tail == nullptr || choice.chosen() < longest) return choice.chosen();
    std::int64_t extra = 0;
    while (goes_on(t - extra, c)) ++extra;
    return longest + extra;
  }

  /// Of a segment of at least K frames up to t: whether it had as many at t - 1 already.
  bool goes_on(std::int64_t t, std::int64_t c) {
    const double before = lattice_.open[(t - 1) * stride_ + c];
    if (before == kNegInf || x_.is_forced(t - 1)) return false;
    const auto at = static_cast<std::size_t>(t);
    const double score = before + (lattice_.base[at - 1] - lattice_.base[at]) + x_.tail[c] +
                         x_.row.emission[(t - 1) * stride_ + c];
    return rng_.uniform() < std::exp(score - lattice_.open[t * stride_ + c]);
  }

  const LatticeInput& x_;
  const Lattice& lattice_;
  Rng& rng_;
  std::int64_t stride_;
};

}  // namespace

template <class T>
void Inference::sample(const Potentials<T>& potentials, const Scope& scope, std::int64_t n,
                       std::uint64_t seed, SegmentationLists& drawn, std::int64_t first_row) {
  if (n < 0)
    throw UsageError(fmt::format("semicrf: found {} samples to draw, expected 0 or more", n));
  const Dims dims = check_with_tables(potentials);
  check_scope(scope, dims, potentials.lengths);
  ScopedModel model;
  load_scoped(potentials, scope, dims, model);
  std::vector<RowList> rows(static_cast<std::size_t>(dims.batch));
  state_->for_rows(0, dims.batch, [&](std::int64_t b, LatticeWorkspace& w) {
    load_scoped_row(potentials, scope.constraints, dims, b, w.scoped);
    RowList& mine = rows[static_cast<std::size_t>(b)];
    const LatticeInput input = lattice_of(model, w.scoped);
    if (w.scoped.row.length > 0 && lattice_forward(input, Sum::kLog, w.lattice) == kNegInf) return;
    for (std::int64_t i = 0; i < n; ++i) {
      if (w.scoped.row.length == 0) {
        mine.append({}, 0.0);
        continue;
      }
      const auto stream = static_cast<std::uint64_t>(first_row + b) << 32;
      Rng rng(seed, stream | static_cast<std::uint64_t>(i));
      const std::vector<Piece> path = Sampler(input, w.lattice, rng).draw();
      mine.append(path, score_of(input, path));
    }
  });
  collect(rows, drawn);
}

template void Inference::sample(const Potentials<float>&, const Scope&, std::int64_t, std::uint64_t,
                                SegmentationLists&, std::int64_t);
template void Inference::sample(const Potentials<double>&, const Scope&, std::int64_t,
                                std::uint64_t, SegmentationLists&, std::int64_t);

}  // namespace segfuse::semicrf
