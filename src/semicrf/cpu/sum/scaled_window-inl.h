// The sliding window of a linear-domain pass, for Highway targets: its references, bounds and
// entries. Included once per target, after highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_SCALED_WINDOW_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_SCALED_WINDOW_INL
#undef SEGFUSE_SEMICRF_SCALED_WINDOW_INL
#else
#define SEGFUSE_SEMICRF_SCALED_WINDOW_INL
#endif

#include <hwy/highway.h>

#include "semicrf/cpu/sum/scaled.h"
#include "semicrf/cpu/sum/scaled_frames-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

/// One pass over one row, at boundary `at`.
struct Strand {
  const ScaledRow& owner;
  const ScaledTables& tables;
  const FrameFactors& frames;
  ScaledPass& pass;
  ScaledWindow& window;
  PendingDurations& pending;
  AlignedDoubles& duration_counts;
  const double* scores;  ///< emission, for what it forbids
  std::int64_t stride;
  std::int64_t classes;
  std::int64_t longest;
  std::int64_t length;
  std::int64_t at;
  std::int64_t at_counted = 0;  ///< boundary of the last pending segments
  const double* newest() const { return window.entries.data() + window.newest * stride; }
};

/// Counts pending segments now: the window is about to change (scaled_counts-inl.h,
/// scaled_by_duration_backward-inl.h).
void flush_pending(Strand& x);

/// x where factor > 0, else 0.
HWY_INLINE Vec where_positive(Vec factor, Vec x) {
  return hn::IfThenElseZero(hn::Gt(factor, hn::Zero(Lanes())), x);
}

/// Ranges seen so far of values that are not 0. Positive doubles, infinity and NaN are ordered like
/// their bits.
class Extremes {
 public:
  HWY_INLINE Extremes(ScaledWindow& window, std::int64_t which)
      : at_(window.extremes.data() + 2 * which * kLanes),
        smallest_(hn::Load(Lanes(), at_)),
        largest_(hn::BitCast(Bits(), hn::Load(Lanes(), at_ + kLanes))) {}
  /// x came from `origin` by multiplication: one is 0 if and only if the other is, or bits were
  /// lost.
  HWY_INLINE void add(Vec origin, Vec x) {
    const Lanes d;
    smallest_ = hn::Min(smallest_,
                        hn::IfThenElse(hn::Gt(origin, hn::Zero(d)), x, hn::Set(d, kLargestEntry)));
    largest_ = hn::Max(largest_, hn::BitCast(Bits(), x));
  }
  HWY_INLINE void store() const {
    hn::Store(smallest_, Lanes(), at_);
    hn::Store(hn::BitCast(Lanes(), largest_), Lanes(), at_ + kLanes);
  }

 private:
  double* at_;
  Vec smallest_;
  BitVec largest_;
};

/// Whether pending weights would become too large.
bool weights_exceed(const Strand& x, std::int64_t v, Vec factor) {
  const Lanes d;
  Vec largest = hn::Zero(d);
  for (std::int64_t i = 0; i < x.pending.count; ++i)
    largest = hn::Max(largest, hn::Load(d, x.pending.weights.data() + i * x.stride + v));
  const Vec limit = hn::Set(d, kLargestSegmentWeight);
  return !hn::AllFalse(d, hn::Gt(hn::Mul(largest, factor), limit));
}

/// Puts 8 classes on references near 1. Entries that become too small to hold are dropped where
/// newer, larger ones outlive them, or noted where what ends later will tell whether they mattered;
/// otherwise the row is given up.
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
  if (weights_exceed(x, v, down)) flush_pending(x);
  hn::Store(hn::Mul(old, down), d, reference);
  hn::Store(hn::Mul(hn::Load(d, inverse), up), d, inverse);
  const bool note_drops = window.dropped.size() > 0;
  const Vec enough = note_drops ? hn::Set(d, std::numeric_limits<double>::infinity())
                                : hn::Load(d, x.tables.enough.data() + v);
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
    const auto matters = hn::And(drop, hn::Lt(newer, enough));
    bad = hn::Or(bad, hn::Gt(now, largest));
    if (note_drops && !hn::AllFalse(d, matters)) {
      double* dropped = window.dropped.data() + v;
      const Vec reach = hn::Set(d, static_cast<double>(x.longest + 1));
      hn::Store(hn::IfThenElse(matters, reach, hn::Load(d, dropped)), d, dropped);
    } else {
      bad = hn::Or(bad, matters);
    }
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

/// Whether references, or their inverses, are too far from 1.
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
    flush_pending(x);
    drop_forbidden(x, x.scores + t * x.stride, held);
  }
}

/// The exponent of the largest value of a boundary, to be taken out at the next.
HWY_INLINE void set_lag(ScaledWindow& window, Vec largest) {
  const double top = hn::GetLane(hn::MaxOfLanes(Lanes(), largest));
  const auto exponent = static_cast<std::int64_t>(std::bit_cast<std::uint64_t>(top) >> 52) - 1022;
  window.lag = top > 0.0 ? std::clamp<std::int64_t>(exponent, -400, 400) : 0;
}

/// Makes room behind the newest entry.
HWY_INLINE double* next_entry(Strand& x) {
  ScaledWindow& window = x.window;
  if (++window.newest == window.capacity) {
    const std::int64_t kept = std::min(window.kept, window.newest);
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
