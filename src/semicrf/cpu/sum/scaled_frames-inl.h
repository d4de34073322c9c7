// A row's frame scores as factors, for Highway targets; and what the linear-domain passes share.
// Included once per target, after highway.h; no pragma once by design.

#if defined(SEGFUSE_SEMICRF_SCALED_FRAMES_INL) == defined(HWY_TARGET_TOGGLE)
#ifdef SEGFUSE_SEMICRF_SCALED_FRAMES_INL
#undef SEGFUSE_SEMICRF_SCALED_FRAMES_INL
#else
#define SEGFUSE_SEMICRF_SCALED_FRAMES_INL
#endif

#include <hwy/highway.h>

#include <bit>

#include "semicrf/cpu/sum/scaled.h"
#include "semicrf/cpu/sum/vector_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace segfuse::semicrf::HWY_NAMESPACE {
namespace {

using Lanes = hn::CappedTag<double, kLanes>;
using Vec = hn::Vec<Lanes>;
using Bits = hn::RebindToUnsigned<Lanes>;
using BitVec = hn::Vec<Bits>;

inline std::int64_t lanes() { return static_cast<std::int64_t>(hn::Lanes(Lanes())); }

/// The same value, loaded once: keeps the compiler from loading it again for every use, as loads
/// are scarcer than multiplications.
HWY_INLINE Vec in_register(Vec x) {
#if HWY_ARCH_X86 && HWY_TARGET != HWY_EMU128 && (HWY_COMPILER_GCC || HWY_COMPILER_CLANG)
  asm("" : "+v"(x.raw));
#endif
  return x;
}

/// 2^e for |e| <= 1000.
inline double power_of_two(std::int64_t e) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(e + 1023) << 52);
}

/// Smallest and largest finite score of a frame, and whether a label is forbidden.
struct FrameRange {
  double smallest, largest;
  bool forbids;
};

FrameRange range_of_frame(const double* scores, std::int64_t classes) {
  const Lanes d;
  const Vec none = hn::Set(d, kNegInf);
  Vec largest = none;
  Vec smallest = hn::Neg(none);
  auto forbids = hn::FirstN(d, 0);
  for (std::int64_t v = 0; v < classes; v += lanes()) {
    const auto valid = hn::FirstN(d, static_cast<std::size_t>(classes - v));
    const Vec x = hn::Load(d, scores + v);
    const auto forbidden = hn::And(valid, hn::Eq(x, none));
    const auto finite = hn::AndNot(forbidden, valid);
    forbids = hn::Or(forbids, forbidden);
    largest = hn::Max(largest, hn::IfThenElse(finite, x, none));
    smallest = hn::Min(smallest, hn::IfThenElse(finite, x, hn::Neg(none)));
  }
  return {hn::GetLane(hn::MinOfLanes(d, smallest)), hn::GetLane(hn::MaxOfLanes(d, largest)),
          !hn::AllFalse(d, forbids)};
}

/// Factors of frames [begin, end); false when a frame's range is too wide.
bool prepare_frames(const Row& row, std::int64_t classes, std::int64_t stride, std::int64_t begin,
                    std::int64_t end, FrameFactors& frames) {
  const Lanes d;
  bool good = true;
  for (std::int64_t t = begin; t < end; ++t) {
    const double* scores = row.emission + t * stride;
    const FrameRange range = range_of_frame(scores, classes);
    good &= !(range.largest - range.smallest > kWidestFrame);
    const double shift =
        range.largest == kNegInf ? 0.0 : std::nearbyint(range.largest * 1.4426950408889634074);
    frames.exponent[t] = static_cast<std::int32_t>(std::clamp(shift, -1e9, 1e9));
    good &= std::abs(shift) < 1e6;
    frames.forbids[t] = range.forbids;
    double* factor = frames.emission.data() + t * stride;
    const Vec shift_lanes = hn::Set(d, shift);
    for (std::int64_t v = 0; v < stride; v += lanes())
      hn::Store(shifted_exp(d, hn::Load(d, scores + v), shift_lanes), d, factor + v);
    std::fill(factor + classes, factor + stride, 1.0);
  }
  return good;
}

/// exp of frame scores without exponents; false when one is out of range.
bool prepare_boundary_scores(const double* scores, std::int64_t size, double* factors) {
  const Lanes d;
  const Vec low = hn::Set(d, kSmallestFactor);
  const Vec high = hn::Set(d, kLargestFactor);
  auto bad = hn::FirstN(d, 0);
  for (std::int64_t i = 0; i < size; i += lanes()) {
    const Vec x = hn::Load(d, scores + i);
    bad = hn::Or(
        bad, hn::Or(hn::Gt(x, high), hn::AndNot(hn::Eq(x, hn::Set(d, kNegInf)), hn::Lt(x, low))));
    hn::Store(exp_of(d, hn::Min(x, high)), d, factors + i);
  }
  return hn::AllFalse(d, bad);
}

}  // namespace
}  // namespace segfuse::semicrf::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif
