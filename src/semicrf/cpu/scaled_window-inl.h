// The sliding window of a linear-domain pass, for Highway targets: its references, bounds and
// entries. Included once per target, after highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_SCALED_WINDOW_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_SCALED_WINDOW_INL
#undef SEGFUSE_SEMICRF_SCALED_WINDOW_INL
#else
#define SEGFUSE_SEMICRF_SCALED_WINDOW_INL
#endif

#include <hwy/highway.h>

#include "semicrf/cpu/scaled.h"
#include "semicrf/cpu/scaled_frames-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

/// One pass over one row, at boundary `at`.
struct Strand {
  const ScaledTables& tables;
  const FrameFactors& frames;
  ScaledPass& pass;
  ScaledWindow& window;
  PendingDurations& pending;
  Buffer& duration_counts;
  const double* scores;  ///< emission, for what it forbids
  std::int64_t stride;
  std::int64_t classes;
  std::int64_t longest;
  std::int64_t length;
  std::int64_t at;
  const double* newest() const { return window.entries.data() + window.newest * stride; }
};

/// Counts pending durations now: the window is about to change (scaled_counts-inl.h).
void flush_durations(Strand& x);

/// Ranges seen so far, as bits: positive doubles are ordered like integers. For smallest values 1
/// is taken off, so that 0 counts as largest.
class Extremes {
 public:
  HWY_INLINE Extremes(ScaledWindow& window, std::int64_t which)
      : at_(reinterpret_cast<std::uint64_t*>(window.extremes.data() + 2 * which * kLanes)),
        smallest_(hn::Load(Bits(), at_)),
        largest_(hn::Load(Bits(), at_ + kLanes)) {}
  HWY_INLINE void add(Vec x) {
    const Bits bits;
    const BitVec b = hn::BitCast(bits, x);
    smallest_ = hn::Min(smallest_, hn::Sub(b, hn::Set(bits, 1)));
    largest_ = hn::Max(largest_, b);
  }
  HWY_INLINE void store() const {
    hn::Store(smallest_, Bits(), at_);
    hn::Store(largest_, Bits(), at_ + kLanes);
  }

 private:
  std::uint64_t* at_;
  BitVec smallest_, largest_;
};

/// Puts 8 classes on references near 1. Entries that become too small to hold are dropped where
/// newer, larger ones outlive them; otherwise the row is given up.
void reset_references(Strand& x, std::int64_t v, std::int64_t held) {
  const Lanes d;
  const Bits bits;
  ScaledWindow& window = x.window;
  const BitVec exponent_mask = hn::Set(bits, 0x7FF0000000000000ULL);
  double* reference = window.reference.data() + v;
  double* inverse = window.inverse.data() + v;
  const Vec old = hn::Load(d, reference);
  const Vec up = hn::BitCast(d, hn::And(hn::BitCast(bits, old), exponent_mask));
  const Vec down =
      hn::BitCast(d, hn::Sub(hn::Set(bits, std::uint64_t{2046} << 52), hn::BitCast(bits, up)));
  hn::Store(hn::Mul(old, down), d, reference);
  hn::Store(hn::Mul(hn::Load(d, inverse), up), d, inverse);
  const Vec enough = hn::Load(d, x.tables.enough.data() + v);
  const Vec smallest = hn::Set(d, kSmallestEntry);
  const Vec largest = hn::Set(d, kLargestEntry);
  Vec newer = hn::Zero(d);
  auto bad = hn::FirstN(d, 0);
  double* entry = window.entries.data() + window.newest * x.stride + v;
  std::int64_t k = 0;
  for (; k < held && !hn::AllTrue(d, hn::Ge(newer, enough)); ++k, entry -= x.stride) {
    const Vec before = hn::Load(d, entry);
    const Vec now = hn::Mul(before, up);
    const auto drop = hn::And(hn::Lt(now, smallest), hn::Gt(before, hn::Zero(d)));
    bad = hn::Or(bad, hn::Or(hn::And(drop, hn::Lt(newer, enough)), hn::Gt(now, largest)));
    newer = hn::Max(newer, now);
    hn::Store(now, d, entry);
  }
  for (; k < held; ++k, entry -= x.stride) {
    const Vec now = hn::Mul(hn::Load(d, entry), up);
    bad = hn::Or(bad, hn::Gt(now, largest));
    hn::Store(now, d, entry);
  }
  if (!hn::AllFalse(d, bad)) window.failed = true;
  for (std::int64_t i = window.tile_done; i < kSumTile; ++i) {
    double* ahead = window.ahead.data() + i * x.stride + v;
    hn::Store(hn::Mul(hn::Load(d, ahead), up), d, ahead);
  }
  for (std::int64_t i = 0; i < x.pending.count; ++i) {
    double* weight = x.pending.weights.data() + i * x.stride + v;
    hn::Store(hn::Mul(hn::Load(d, weight), down), d, weight);
  }
}

/// Empties the window of labels that a frame forbids.
void drop_forbidden(Strand& x, const double* scores, std::int64_t held) {
  const Lanes d;
  ScaledWindow& window = x.window;
  for (std::int64_t v = 0; v < x.stride; v += lanes()) {
    const auto forbidden = hn::Eq(hn::Load(d, scores + v), hn::Set(d, kNegInf));
    if (hn::AllFalse(d, forbidden)) continue;
    double* entry = window.entries.data() + window.newest * x.stride + v;
    for (std::int64_t k = 0; k < held; ++k, entry -= x.stride)
      hn::Store(hn::IfThenZeroElse(forbidden, hn::Load(d, entry)), d, entry);
    for (std::int64_t i = window.tile_done; i < kSumTile; ++i) {
      double* ahead = window.ahead.data() + i * x.stride + v;
      hn::Store(hn::IfThenZeroElse(forbidden, hn::Load(d, ahead)), d, ahead);
    }
  }
}

/// Whether references, or their inverses, have gone too far from 1.
HWY_INLINE bool is_far(Vec reference, Vec inverse) {
  const Lanes d;
  return !hn::AllFalse(d, hn::Or(hn::Gt(reference, hn::Set(d, kLargestReference)),
                                 hn::Gt(inverse, hn::Set(d, kLargestInverse))));
}

/// Moves the references past the frame that joins at boundary x.at, and the exponent with them.
/// `held` entries are in the window.
void absorb_frame(Strand& x, std::int64_t held) {
  const Lanes d;
  ScaledWindow& window = x.window;
  const std::int64_t t = x.pass.frame(x.at);
  window.exponent += x.frames.exponent[t] + window.lag;
  x.pass.exponent[x.at] = window.exponent;
  const double* factor = x.frames.emission.data() + t * x.stride;
  const Vec down = hn::Set(d, power_of_two(-window.lag));
  const Vec one = hn::Set(d, 1.0);
  Vec largest = hn::Zero(d);
  Vec largest_inverse = hn::Zero(d);
  for (std::int64_t v = 0; v < x.stride; v += lanes()) {
    double* reference = window.reference.data() + v;
    const Vec r = hn::Mul(hn::Load(d, reference), hn::Mul(hn::Load(d, factor + v), down));
    const Vec inverse = hn::Div(one, r);
    hn::Store(r, d, reference);
    hn::Store(inverse, d, window.inverse.data() + v);
    largest = hn::Max(largest, r);
    largest_inverse = hn::Max(largest_inverse, inverse);
  }
  if (is_far(largest, largest_inverse)) {
    for (std::int64_t v = 0; v < x.stride; v += lanes())
      if (is_far(hn::Load(d, window.reference.data() + v), hn::Load(d, window.inverse.data() + v)))
        reset_references(x, v, held);
  }
  if (x.frames.forbids[t] != 0) {
    flush_durations(x);
    drop_forbidden(x, x.scores + t * x.stride, held);
  }
}

/// Makes room behind the newest entry.
HWY_INLINE double* next_entry(Strand& x) {
  ScaledWindow& window = x.window;
  if (++window.newest == window.capacity) {
    const std::int64_t kept = std::min(x.longest + kSumTile, window.newest);
    std::copy_n(window.entries.data() + (window.newest - kept) * x.stride, kept * x.stride,
                window.entries.data());
    window.newest = kept;
  }
  return window.entries.data() + window.newest * x.stride;
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
