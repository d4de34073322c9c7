// One boundary of the linear-domain passes, for Highway targets: the window's sums and the link to
// other labels. Included once per target, after highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_SCALED_PASS_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_SCALED_PASS_INL
#undef SEGFUSE_SEMICRF_SCALED_PASS_INL
#else
#define SEGFUSE_SEMICRF_SCALED_PASS_INL
#endif

#include <hwy/highway.h>

#include "semicrf/cpu/sum/scaled.h"
#include "semicrf/cpu/sum/scaled_window-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

// --- sums over the window ---

/// Sums over the n newest entries for the tile's boundaries from here on: ahead[i] for the i-th,
/// where an entry of age j counts as duration j + 1 + i. Odd and even ages apart, which keeps
/// enough sums in flight; four ages share the factors they have in common.
template <int R>
HWY_INLINE void begin_sums(Strand* const* x, std::int64_t v, std::int64_t n) {
  static_assert(kSumTile == 4);
  const Lanes d;
  const std::int64_t stride = x[0]->stride;
  const double* entry[R];
  Vec sum[R][2][4];
  for (int r = 0; r < R; ++r) {
    entry[r] = x[r]->newest() + v;
    for (int i = 0; i < 4; ++i) sum[r][0][i] = sum[r][1][i] = hn::Zero(d);
  }
  const double* factor = x[0]->tables.duration.data() + v;
  Vec f[7];
  for (int i = 0; i < 3; ++i) f[i] = hn::Load(d, factor + i * stride);
  factor += 3 * stride;
  std::int64_t age = 0;
  for (; age + 4 <= n; age += 4) {
    for (int i = 3; i < 7; ++i, factor += stride) f[i] = in_register(hn::Load(d, factor));
    for (int r = 0; r < R; ++r) {
      for (int a = 0; a < 4; ++a, entry[r] -= stride) {
        const Vec e = in_register(hn::Load(d, entry[r]));
        for (int i = 0; i < 4; ++i) sum[r][a % 2][i] = hn::MulAdd(e, f[a + i], sum[r][a % 2][i]);
      }
    }
    for (int i = 0; i < 3; ++i) f[i] = f[i + 4];
  }
  for (; age < n; ++age, factor += stride) {
    f[3] = hn::Load(d, factor);
    for (int r = 0; r < R; ++r, entry[r - 1] -= stride) {
      const Vec e = hn::Load(d, entry[r]);
      for (int i = 0; i < 4; ++i) sum[r][0][i] = hn::MulAdd(e, f[i], sum[r][0][i]);
    }
    for (int i = 0; i < 3; ++i) f[i] = f[i + 1];
  }
  for (int r = 0; r < R; ++r)
    for (int i = 0; i < 4; ++i)
      hn::Store(hn::Add(sum[r][0][i], sum[r][1][i]), d, x[r]->window.ahead.data() + v + i * stride);
}

template <int R>
void begin_tile(Strand* const* x, std::int64_t n) {
  constexpr bool kTogether = HWY_TARGET <= HWY_AVX3;  // 32 registers
  for (std::int64_t v = 0; v < x[0]->stride; v += lanes()) {
    if constexpr (kTogether) {
      begin_sums<R>(x, v, n);
    } else {
      for (int r = 0; r < R; ++r) begin_sums<1>(x + r, v, n);
    }
  }
  for (int r = 0; r < R; ++r) x[r]->window.tile_done = 0;
}

/// value[x.at]: the sums begun with the tile, the kSince entries that came after it began,
/// reference and leave factors.
template <int kSince>
HWY_INLINE void form_value(Strand& x) {
  const Lanes d;
  ScaledWindow& window = x.window;
  const double* ahead = window.ahead.data() + window.tile_done * x.stride;
  const double* entries = x.newest();
  const double* factors = x.tables.duration.data();
  const double* leave =
      x.pass.leave == nullptr ? nullptr : x.pass.leave + x.pass.frame(x.at) * x.stride;
  double* value = x.pass.value.data() + x.pass.row(x.at) * x.stride;
  Extremes extremes(window, 0);
  Vec largest = hn::Zero(d);
  for (std::int64_t v = 0; v < x.stride; v += lanes()) {
    Vec sum = hn::Load(d, ahead + v);
    for (std::int64_t k = kSince - 1; k >= 0; --k)
      sum = hn::MulAdd(hn::Load(d, entries - k * x.stride + v),
                       hn::Load(d, factors + k * x.stride + v), sum);
    Vec result = hn::Mul(sum, hn::Load(d, window.reference.data() + v));
    if (leave != nullptr) {
      const Vec factor = hn::Load(d, leave + v);
      result = hn::Mul(result, factor);
      sum = where_positive(factor, sum);
    }
    hn::Store(result, d, value + v);
    largest = hn::Max(largest, result);
    extremes.add(sum, result);
  }
  extremes.store();
  set_lag(window, largest);
}

void form_value(Strand& x) {
  static_assert(kSumTile == 4);
  switch (x.window.tile_done) {
    case 0: form_value<0>(x); break;
    case 1: form_value<1>(x); break;
    case 2: form_value<2>(x); break;
    default: form_value<3>(x);
  }
  ++x.window.tile_done;
}

// --- links ---

/// linked[x.at] and the new window entries, V vectors of classes of R rows. Odd and even labels
/// apart, which keeps enough sums in flight.
template <int R, int V>
HWY_INLINE void link_labels(Strand* const* x, const double* factors, std::int64_t v,
                            double* const* entry) {
  const Lanes d;
  const std::int64_t stride = x[0]->stride;
  const std::int64_t classes = x[0]->classes;
  const double* value[R];
  for (int r = 0; r < R; ++r)
    value[r] = x[r]->pass.value.data() + x[r]->pass.row(x[r]->at) * stride;
  Vec sum[2][R][V];
  for (int p = 0; p < 2; ++p)
    for (int r = 0; r < R; ++r)
      for (int i = 0; i < V; ++i) sum[p][r][i] = hn::Zero(d);
  const double* row = factors + v;
  const auto add = [&](int p, std::int64_t from) HWY_ATTR {
    Vec f[V];
    for (int i = 0; i < V; ++i) f[i] = in_register(hn::Load(d, row + i * lanes()));
    for (int r = 0; r < R; ++r) {
      const Vec scale = hn::Set(d, value[r][from]);
      for (int i = 0; i < V; ++i) sum[p][r][i] = hn::MulAdd(f[i], scale, sum[p][r][i]);
    }
    row += stride;
  };
  std::int64_t from = 0;
  for (; from + 2 <= classes; from += 2) {
    add(0, from);
    add(1, from + 1);
  }
  if (from < classes) add(0, from);
  for (int r = 0; r < R; ++r) {
    ScaledPass& pass = x[r]->pass;
    const std::int64_t at = x[r]->at;
    const double* enter =
        pass.enter == nullptr ? nullptr : pass.enter + pass.frame(at - pass.step) * stride + v;
    double* linked = pass.linked.data() + pass.row(at) * stride + v;
    const double* inverse = x[r]->window.inverse.data() + v;
    Extremes extremes(x[r]->window, 1);
    for (int i = 0; i < V; ++i) {
      Vec total = hn::Add(sum[0][r][i], sum[1][r][i]);
      hn::Store(total, d, linked + i * lanes());
      Vec made = hn::Mul(total, hn::Load(d, inverse + i * lanes()));
      if (enter != nullptr) {
        const Vec factor = hn::Load(d, enter + i * lanes());
        made = hn::Mul(made, factor);
        total = where_positive(factor, total);
      }
      hn::Store(made, d, entry[r] + v + i * lanes());
      extremes.add(total, made);
    }
    extremes.store();
  }
}

template <int R>
void link(Strand* const* x) {
  const ScaledTables& tables = x[0]->tables;
  const double* factors = (x[0]->pass.step < 0 ? tables.into : tables.out_of).data();
  const std::int64_t stride = x[0]->stride;
  const std::int64_t step = lanes();
  double* entry[R];
  for (int r = 0; r < R; ++r) entry[r] = next_entry(*x[r]);
  std::int64_t v = 0;
  for (; v + 3 * step <= stride; v += 3 * step) link_labels<R, 3>(x, factors, v, entry);
  if (stride - v == 2 * step)
    link_labels<R, 2>(x, factors, v, entry);
  else if (stride - v == step)
    link_labels<R, 1>(x, factors, v, entry);
}

/// The first boundary of a pass: linked[x.at] is given.
void enter_first(Strand& x) {
  ScaledPass& pass = x.pass;
  const double* enter =
      pass.enter == nullptr ? nullptr : pass.enter + pass.frame(x.at - pass.step) * x.stride;
  for (std::int64_t c = 0; c < x.stride; ++c)
    x.window.entries[c] =
        pass.linked[pass.row(x.at) * x.stride + c] * (enter == nullptr ? 1.0 : enter[c]);
}

/// R passes by one boundary each, all after the same number of steps. The last boundary of a row
/// links to nothing.
template <int R>
void advance(Strand* const* x, bool last) {
  const std::int64_t done = x[0]->window.steps;
  const std::int64_t longest = x[0]->longest;
  for (int r = 0; r < R; ++r) {
    x[r]->at -= x[r]->pass.step;
    absorb_frame(*x[r], std::min(done + 1, longest + kSumTile));
  }
  if (x[0]->window.tile_done == kSumTile) begin_tile<R>(x, std::min(done + 1, longest));
  for (int r = 0; r < R; ++r) form_value(*x[r]);
  if (last)
    for (int r = 0; r < R; ++r) next_entry(*x[r]);
  else
    link<R>(x);
  for (int r = 0; r < R; ++r) ++x[r]->window.steps;
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
