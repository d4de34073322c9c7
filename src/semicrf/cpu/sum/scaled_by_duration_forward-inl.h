// The linear-domain forward pass for transitions that depend on the new segment's duration, O(K
// C^2) a frame, for Highway targets. Products with a slice of transitions are put off until four
// boundaries need it, so that a slice is read once for four. Included once per target, after
// highway.h; no pragma once by design.
//
// Entries of the window are sums over the segments that will end at later boundaries: the newest is
// that of boundary x.at + K.

#if defined(SEGFUSE_SEMICRF_SCALED_BY_DURATION_FORWARD_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_SCALED_BY_DURATION_FORWARD_INL
#undef SEGFUSE_SEMICRF_SCALED_BY_DURATION_FORWARD_INL
#else
#define SEGFUSE_SEMICRF_SCALED_BY_DURATION_FORWARD_INL
#endif

#include <hwy/highway.h>

#include "semicrf/cpu/sum/scaled.h"
#include "semicrf/cpu/sum/scaled_pass-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

// --- products with one slice ---

/// out[i] (+)= left[i] (1, C) times matrix (C, stride), for S rows and V vectors from v on.
template <int S, int V, bool kAdd>
HWY_INLINE void multiply_block(const double* const* left, const double* matrix,
                               std::int64_t classes, std::int64_t stride, std::int64_t v,
                               double* const* out) {
  const Lanes d;
  Vec sum[S][V];
  for (int i = 0; i < S; ++i)
    for (int j = 0; j < V; ++j)
      sum[i][j] = kAdd ? hn::Load(d, out[i] + v + j * lanes()) : hn::Zero(d);
  matrix += v;
  for (std::int64_t from = 0; from < classes; ++from, matrix += stride) {
    Vec f[V];
    for (int j = 0; j < V; ++j) f[j] = in_register(hn::Load(d, matrix + j * lanes()));
    for (int i = 0; i < S; ++i) {
      const Vec scale = hn::Set(d, left[i][from]);
      for (int j = 0; j < V; ++j) sum[i][j] = hn::MulAdd(f[j], scale, sum[i][j]);
    }
  }
  for (int i = 0; i < S; ++i)
    for (int j = 0; j < V; ++j) hn::Store(sum[i][j], d, out[i] + v + j * lanes());
}

template <int S, bool kAdd>
void multiply_rows(const double* const* left, const double* matrix, std::int64_t classes,
                   std::int64_t stride, double* const* out) {
  const std::int64_t step = lanes();
  std::int64_t v = 0;
  for (; v + 3 * step <= stride; v += 3 * step)
    multiply_block<S, 3, kAdd>(left, matrix, classes, stride, v, out);
  if (stride - v == 2 * step)
    multiply_block<S, 2, kAdd>(left, matrix, classes, stride, v, out);
  else if (stride - v == step)
    multiply_block<S, 1, kAdd>(left, matrix, classes, stride, v, out);
}

/// The same for n <= 4 rows.
template <bool kAdd>
void multiply_some(const double* const* left, std::int64_t n, const double* matrix,
                   std::int64_t classes, std::int64_t stride, double* const* out) {
  if (n == kSumTile) return multiply_rows<kSumTile, kAdd>(left, matrix, classes, stride, out);
  for (std::int64_t i = 0; i < n; ++i)
    multiply_rows<1, kAdd>(left + i, matrix, classes, stride, out + i);
}

/// out = a * b, or out += a * b.
template <bool kAdd>
void multiply_vectors(const double* a, const double* b, std::int64_t stride, double* out) {
  const Lanes d;
  for (std::int64_t v = 0; v < stride; v += lanes()) {
    const Vec product = hn::Mul(hn::Load(d, a + v), hn::Load(d, b + v));
    hn::Store(kAdd ? hn::Add(hn::Load(d, out + v), product) : product, d, out + v);
  }
}

// --- forward ---

/// The sum over segments that end k boundaries after x.at.
double* ending_after(const Strand& x, std::int64_t k) {
  return x.window.entries.data() + (x.window.newest - (x.longest - k)) * x.stride;
}

/// value[x.at] from the entry that is due.
void take_value(Strand& x) {
  const Lanes d;
  ScaledWindow& window = x.window;
  const double* due = ending_after(x, 0);
  const double* leave =
      x.pass.leave == nullptr ? nullptr : x.pass.leave + x.pass.frame(x.at) * x.stride;
  double* value = x.pass.value.data() + x.pass.row(x.at) * x.stride;
  Extremes values(window, 0);
  Extremes entries(window, 1);
  Vec largest = hn::Zero(d);
  auto doubtful = hn::FirstN(d, 0);
  for (std::int64_t v = 0; v < x.stride; v += lanes()) {
    Vec sum = hn::Load(d, due + v);
    entries.add(sum, sum);
    // Beside what is due now, what was dropped (below kSmallestEntry) must not matter.
    const Vec left = hn::Load(d, window.dropped.data() + v);
    doubtful = hn::Or(doubtful, hn::And(hn::Gt(left, hn::Zero(d)),
                                        hn::Lt(sum, hn::Set(d, kSmallestEntry * 0x1p100))));
    hn::Store(hn::Max(hn::Sub(left, hn::Set(d, 1.0)), hn::Zero(d)), d, window.dropped.data() + v);
    Vec result = hn::Mul(sum, hn::Load(d, window.reference.data() + v));
    if (leave != nullptr) {
      const Vec factor = hn::Load(d, leave + v);
      result = hn::Mul(result, factor);
      sum = where_positive(factor, sum);
    }
    hn::Store(result, d, value + v);
    largest = hn::Max(largest, result);
    values.add(sum, result);
  }
  values.store();
  entries.store();
  if (!hn::AllFalse(d, doubtful)) window.failed = true;
  set_lag(window, largest);
}

/// Adds the segments of k frames from n boundaries to the entries where they end. Boundary i is
/// x.at - back[i]; its weight is enter / reference.
void send_segments(Strand& x, std::int64_t k, const std::int64_t* back, std::int64_t n) {
  const double* left[kSumTile];
  double* product[kSumTile];
  for (std::int64_t i = 0; i < n; ++i) {
    left[i] = x.pass.value.data() + x.pass.row(x.at - back[i]) * x.stride;
    product[i] = x.owner.state->products.data() + i * x.stride;
  }
  const std::int64_t slice = (k - 1) * x.classes * x.stride;
  multiply_some<false>(left, n, x.tables.into.data() + slice, x.classes, x.stride, product);
  for (std::int64_t i = 0; i < n; ++i) {
    const double* weight = x.window.ahead.data() + (x.window.tile_done + back[i]) * x.stride;
    multiply_vectors<true>(product[i], weight, x.stride, ending_after(x, k - back[i]));
  }
}

/// One forward boundary. Weights of the tile's boundaries lie in `ahead`, the newest first.
void advance_forward_by_duration(Strand& x) {
  ScaledWindow& window = x.window;
  ++x.at;
  absorb_frame(x, x.longest);
  std::fill_n(next_entry(x), x.stride, 0.0);
  take_value(x);
  ++window.steps;
  if (x.at == x.length) return;
  if (window.tile_done == 0) window.tile_done = kSumTile;
  double* weight = window.ahead.data() + --window.tile_done * x.stride;
  if (x.pass.enter != nullptr)
    multiply_vectors<false>(window.inverse.data(), x.pass.enter + x.at * x.stride, x.stride,
                            weight);
  else
    std::copy_n(window.inverse.data(), x.stride, weight);
  const std::int64_t done = kSumTile - window.tile_done;  // boundaries of the tile
  const std::int64_t here[] = {0};
  const std::int64_t reach = std::min(x.longest, x.length - x.at);
  for (std::int64_t k = 1; k <= std::min(kSumTile - done, reach); ++k) send_segments(x, k, here, 1);
  if (done < kSumTile) return;
  for (std::int64_t k = 1; k <= std::min(x.longest, reach + kSumTile - 1); ++k) {
    std::int64_t back[kSumTile];
    std::int64_t n = 0;
    // What ends inside the tile has been sent; what would end behind the row is not.
    for (std::int64_t b = 0; b < std::min(k, kSumTile); ++b)
      if (x.at - b + k <= x.length) back[n++] = b;
    send_segments(x, k, back, n);
  }
}

/// The segments from boundary 0.
void enter_first_by_duration(Strand& x) {
  ScaledWindow& window = x.window;
  window.newest = x.longest;
  std::fill_n(window.entries.data(), (x.longest + 1) * x.stride, 0.0);
  for (std::int64_t k = 1; k <= x.longest; ++k) {
    double* entry = ending_after(x, k);
    multiply_vectors<false>(x.pass.linked.data(), x.tables.duration.data() + (k - 1) * x.stride,
                            x.stride, entry);
    if (x.pass.enter != nullptr) multiply_vectors<false>(entry, x.pass.enter, x.stride, entry);
  }
}

void forward_by_duration(ScaledRow& row, Strand& x) {
  enter_first_by_duration(x);
  for (std::int64_t t = 1; t <= row.row.length; ++t) advance_forward_by_duration(x);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
