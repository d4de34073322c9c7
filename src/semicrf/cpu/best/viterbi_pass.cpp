#include "semicrf/cpu/best/viterbi_pass.h"

#include <algorithm>

#include "base/code/simd_targets.h"

// Vectors of two doubles gain nothing over SSE4's.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | SEGFUSE_NO_SVE)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "semicrf/cpu/best/viterbi_pass.cpp"
#include <hwy/foreach_target.h>
// After foreach_target.h:
#include <hwy/highway.h>

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

namespace hn = hwy::HWY_NAMESPACE;
using Lanes = hn::CappedTag<double, kLanes>;
using Vec = hn::Vec<Lanes>;

constexpr std::int64_t kRebaseFrames = 16;
constexpr std::int64_t kAbsorbFrames = 64;  ///< a multiple of kRebaseFrames
constexpr double kFar = 0x1p20;             ///< of an origin; exact passes stay below it

/// out[v ..] = max over i < n of term(i, v), for kVectors vectors; odd and even i apart, so that
/// enough maxima are in flight.
template <int kVectors, class Term>
HWY_INLINE void best_of(Lanes d, std::int64_t n, std::int64_t v, double* out, Term term) {
  static_assert(kVectors >= 1 && kVectors <= 3);
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  Vec a0 = hn::Set(d, kNegInf), a1 = a0, a2 = a0, b0 = a0, b1 = a0, b2 = a0;
  std::int64_t i = 0;
  for (; i + 1 < n; i += 2) {
    a0 = hn::Max(a0, term(i, v));
    b0 = hn::Max(b0, term(i + 1, v));
    if constexpr (kVectors > 1) {
      a1 = hn::Max(a1, term(i, v + lanes));
      b1 = hn::Max(b1, term(i + 1, v + lanes));
    }
    if constexpr (kVectors > 2) {
      a2 = hn::Max(a2, term(i, v + 2 * lanes));
      b2 = hn::Max(b2, term(i + 1, v + 2 * lanes));
    }
  }
  if (i < n) {
    a0 = hn::Max(a0, term(i, v));
    if constexpr (kVectors > 1) a1 = hn::Max(a1, term(i, v + lanes));
    if constexpr (kVectors > 2) a2 = hn::Max(a2, term(i, v + 2 * lanes));
  }
  hn::Store(hn::Max(a0, b0), d, out + v);
  if constexpr (kVectors > 1) hn::Store(hn::Max(a1, b1), d, out + v + lanes);
  if constexpr (kVectors > 2) hn::Store(hn::Max(a2, b2), d, out + v + 2 * lanes);
}

template <class Term>
HWY_INLINE void best_rows(Lanes d, std::int64_t n, std::int64_t stride, double* out, Term term) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  std::int64_t v = 0;
  for (; v + 4 * lanes < stride; v += 3 * lanes) best_of<3>(d, n, v, out, term);
  if (v + 4 * lanes == stride) {
    best_of<2>(d, n, v, out, term);
    best_of<2>(d, n, v + 2 * lanes, out, term);
  } else if (v + 3 * lanes == stride) {
    best_of<3>(d, n, v, out, term);
  } else if (v + 2 * lanes == stride) {
    best_of<2>(d, n, v, out, term);
  } else if (v + lanes == stride) {
    best_of<1>(d, n, v, out, term);
  }
}

HWY_INLINE Vec on_grid(Lanes d, const ScoreGrid& grid, const double* scores) {
  const Vec rounder = hn::Set(d, grid.rounder);
  return hn::Sub(hn::Add(hn::Load(d, scores), rounder), rounder);
}

struct Sweep {
  BestPass& pass;
  std::int64_t stride = pass.dims->stride;
  std::int64_t longest = pass.dims->max_duration;
  double* window_row(std::int64_t age) const {
    return pass.window.data() + (pass.newest - age) * stride;
  }
};

/// The window takes in the vector's origin.
HWY_INLINE void absorb_origin(Lanes d, const Sweep& x, std::int64_t v) {
  const Vec origin = hn::Load(d, x.pass.origin.data() + v);
  for (std::int64_t age = 0; age < x.pass.known; ++age) {
    double* at = x.window_row(age) + v;
    hn::Store(hn::Add(hn::Load(d, at), origin), d, at);
  }
  hn::Store(hn::Zero(d), d, x.pass.origin.data() + v);
}

/// Adds the emission of frame t to the window by moving its origin.
HWY_INLINE void absorb_frame(Lanes d, const Sweep& x, std::int64_t t) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Vec forbidden = hn::Set(d, kNegInf);
  const bool due = t % kAbsorbFrames == kAbsorbFrames - 1;
  for (std::int64_t v = 0; v < x.stride; v += lanes) {
    Vec score = on_grid(d, x.pass.grid, x.pass.row->emission + t * x.stride + v);
    const auto dead = hn::Eq(score, forbidden);
    if (!hn::AllFalse(d, dead)) {
      for (std::int64_t age = 0; age < x.pass.known; ++age) {
        double* at = x.window_row(age) + v;
        hn::Store(hn::IfThenElse(dead, forbidden, hn::Load(d, at)), d, at);
      }
      score = hn::IfThenZeroElse(dead, score);
    }
    const Vec origin = hn::Add(hn::Load(d, x.pass.origin.data() + v), score);
    hn::Store(origin, d, x.pass.origin.data() + v);
    if (due || !hn::AllFalse(d, hn::Gt(hn::Abs(origin), hn::Set(d, kFar)))) absorb_origin(d, x, v);
  }
}

/// value[t] from the best sums over the window.
HWY_INLINE void close_segments(Lanes d, const Sweep& x, std::int64_t t, double* value) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const double* end = x.pass.row->end == nullptr ? nullptr : x.pass.row->end + (t - 1) * x.stride;
  Vec least = hn::Zero(d);
  for (std::int64_t v = 0; v < x.stride; v += lanes) {
    Vec score = hn::Add(hn::Load(d, x.pass.best.data() + v), hn::Load(d, x.pass.origin.data() + v));
    if (end != nullptr) score = hn::Add(score, on_grid(d, x.pass.grid, end + v));
    hn::Store(score, d, value + v);
    least = hn::Min(least, hn::IfThenZeroElse(hn::Eq(score, hn::Set(d, kNegInf)), score));
  }
  x.pass.least = std::min(x.pass.least, hn::GetLane(hn::MinOfLanes(d, least)));
}

/// Takes a multiple of the unit off value and the origins, so that neither grows with t.
HWY_INLINE void rebase(const Sweep& x, double* value) {
  const double max = *std::max_element(value, value + x.stride);
  if (max == kNegInf) return;
  const double shift = (max + x.pass.grid.base_rounder) - x.pass.grid.base_rounder;
  for (std::int64_t c = 0; c < x.stride; ++c) {
    value[c] -= shift;
    x.pass.origin[c] -= shift;
  }
  x.pass.base += shift;
}

/// Makes room for one more row of the window: the oldest ones go.
HWY_INLINE void next_window_row(const Sweep& x) {
  BestPass& pass = x.pass;
  if (pass.known == x.longest) --pass.known;
  if ((pass.newest + 2) * x.stride > pass.window.size()) {
    const double* oldest = x.window_row(pass.known - 1);
    std::copy(oldest, oldest + pass.known * x.stride, pass.window.data());
    pass.newest = pass.known - 1;
  }
  ++pass.newest;
  ++pass.known;
}

/// The source of boundary t joins the window.
HWY_INLINE void join(Lanes d, const Sweep& x, std::int64_t t, const double* source) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  next_window_row(x);
  const double* start = x.pass.row->start == nullptr ? nullptr : x.pass.row->start + t * x.stride;
  for (std::int64_t v = 0; v < x.stride; v += lanes) {
    Vec score = hn::Load(d, source + v);
    if (start != nullptr) score = hn::Add(score, on_grid(d, x.pass.grid, start + v));
    hn::Store(hn::Sub(score, hn::Load(d, x.pass.origin.data() + v)), d, x.window_row(0) + v);
  }
}

void advance(BestPass& pass, const BestLattice& lattice, std::int64_t from, std::int64_t to) {
  const Lanes d;
  const Sweep x{pass};
  const std::int64_t stride = x.stride;
  for (std::int64_t t = from + 1; t <= to; ++t) {
    double* value = lattice.value + (t - lattice.first) * stride;
    absorb_frame(d, x, t - 1);
    const double* newest = x.window_row(0);
    const double* duration = pass.duration;
    best_rows(d, pass.known, stride, pass.best.data(),
              [=](std::int64_t k, std::int64_t v) HWY_ATTR {
                return hn::Add(hn::Load(d, newest - k * stride + v),
                               hn::Load(d, duration + k * stride + v));
              });
    close_segments(d, x, t, value);
    if (t % kRebaseFrames == 0) rebase(x, value);
    lattice.base[t - lattice.first] = pass.base;
    if (t == pass.row->length) return;
    double* source = lattice.source + (t - lattice.first) * stride;
    const double* transition = pass.transition;
    best_rows(d, pass.dims->classes, stride, source, [=](std::int64_t c, std::int64_t v) HWY_ATTR {
      return hn::Add(hn::Set(d, value[c]), hn::Load(d, transition + c * stride + v));
    });
    join(d, x, t, source);
  }
}

double largest(const double* scores, std::int64_t n) {
  const Lanes d;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const Vec forbidden = hn::Set(d, kNegInf);
  Vec most = hn::Zero(d);
  std::int64_t i = 0;
  for (; i + lanes <= n; i += lanes) {
    const Vec score = hn::LoadU(d, scores + i);
    most = hn::Max(most, hn::Abs(hn::IfThenZeroElse(hn::Eq(score, forbidden), score)));
  }
  double result = hn::GetLane(hn::MaxOfLanes(d, most));
  for (; i < n; ++i)
    if (scores[i] != kNegInf) result = std::max(result, std::abs(scores[i]));
  return result;
}

double best_sum(const double* a, const double* b, std::int64_t n) {
  const Lanes d;
  Vec most = hn::Set(d, kNegInf);
  for (std::int64_t i = 0; i < n; i += static_cast<std::int64_t>(hn::Lanes(d)))
    most = hn::Max(most, hn::Add(hn::Load(d, a + i), hn::Load(d, b + i)));
  return hn::GetLane(hn::MaxOfLanes(d, most));
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace segfuse::semicrf {
namespace {
HWY_EXPORT(advance);
HWY_EXPORT(largest);
HWY_EXPORT(best_sum);
}  // namespace

ScoreGrid grid_of(double largest_score, std::int64_t max_duration) {
  // Between rebasings and within a window, values lie within 2^range of their base, unless
  // forbidden scores drive them apart. A sum of them has 53 bits.
  constexpr int kCoarsest = -26;
  int size = 0;
  std::frexp(std::max(largest_score, 0x1p-900), &size);
  int terms = 0;
  while ((std::int64_t{1} << terms) < std::max<std::int64_t>(max_duration, 60) + 4) ++terms;
  const int range = size + terms + 4;
  ScoreGrid grid;
  grid.exact = range - 52 <= kCoarsest;
  if (!grid.exact) return grid;
  grid.rounder = std::ldexp(1.5, range);
  grid.base_rounder = std::ldexp(1.5, 52 + size);
  grid.least = -std::ldexp(1.0, range - 1);
  return grid;
}

double largest_size(const double* scores, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(largest)(scores, n);
}

double largest_sum(const double* a, const double* b, std::int64_t n) {
  return HWY_DYNAMIC_DISPATCH(best_sum)(a, b, n);
}

void open_pass(BestPass& pass, const BestLattice& lattice, std::int64_t t) {
  const std::int64_t stride = pass.dims->stride;
  const std::int64_t longest = pass.dims->max_duration;
  pass.window.resize((2 * longest + 64) * stride);
  pass.origin.assign(stride, 0.0);
  pass.best.resize(stride);
  pass.base = lattice.base[t - lattice.first];
  pass.least = 0.0;
  pass.known = std::min(longest, t - lattice.first + 1);
  pass.newest = pass.known - 1;
  const Row& row = *pass.row;
  for (std::int64_t c = 0; c < stride; ++c) {
    double content = 0.0;
    for (std::int64_t s = t; s > t - pass.known; --s) {
      if (s < t) content += pass.grid(row.emission[s * stride + c]);
      double score = lattice.source[(s - lattice.first) * stride + c] + content +
                     (lattice.base[s - lattice.first] - pass.base);
      if (row.start != nullptr) score += pass.grid(row.start[s * stride + c]);
      pass.window[(pass.newest - (t - s)) * stride + c] = score;
    }
  }
}

void advance_pass(BestPass& pass, const BestLattice& lattice, std::int64_t from, std::int64_t to) {
  HWY_DYNAMIC_DISPATCH(advance)(pass, lattice, from, to);
}

}  // namespace segfuse::semicrf
#endif
