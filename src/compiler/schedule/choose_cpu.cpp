#include <algorithm>
#include <bit>

#include "compiler/schedule/choose.h"

namespace segfuse::compiler {

namespace {

constexpr std::int64_t kStream = 8192;         // elements of one outer iteration of a plain loop
constexpr std::int64_t kColumns = 128;         // lanes that walk down rows together: eight vectors
constexpr std::int64_t kNear = 1 << 18;        // elements that stay in the second level cache
constexpr std::int64_t kRows = 2048;           // elements of short rows beside each other
constexpr std::int64_t kCpuFewRows = 16;       // less than this leaves threads idle
constexpr std::int64_t kCpuLongRow = 1 << 17;  // elements worth splitting
constexpr std::int64_t kPart = 1 << 15;        // of a split row
constexpr std::int64_t kHeld = 1 << 16;        // longest row that is held
// Shorter rows lie across the lanes: rows walked three times and more, walked less, not reduced.
constexpr std::int64_t kShortNorm = 48;
constexpr std::int64_t kShortRow = 16;
constexpr std::int64_t kShortKept = 16;
constexpr std::int64_t kAcross = 64;  // elements worth running along: four vectors

/// The power of two at or below.
std::int64_t floor_power(std::int64_t value) {
  return static_cast<std::int64_t>(
      std::bit_floor(static_cast<std::uint64_t>(std::max<std::int64_t>(1, value))));
}

struct Lengths {
  Lengths(const Space& space, std::span<const std::int64_t> lengths) {
    for (std::size_t axis = 0; axis < space.axes.size(); ++axis) {
      const std::int64_t length = std::max<std::int64_t>(1, lengths[axis]);
      switch (space.axes[axis].role) {
        case SpaceAxis::Role::kParallel: parallel *= length; break;
        case SpaceAxis::Role::kReduced: reduced *= length; break;
        case SpaceAxis::Role::kColumn: columns *= length; break;
      }
    }
    if (space.inner >= 0)
      inner = std::max<std::int64_t>(1, lengths[static_cast<std::size_t>(space.inner)]);
  }
  std::int64_t parallel = 1;
  std::int64_t reduced = 1;
  std::int64_t columns = 1;
  std::int64_t inner = 1;
};

/// The axis that lanes run along where the innermost is too short for them: the nearest that is
/// long enough; -1: the innermost.
int lanes_across(const Space& space, std::span<const std::int64_t> lengths) {
  if (space.inner < 0) return -1;
  const auto inner = static_cast<std::size_t>(space.inner);
  const bool reduced = space.axes[inner].role == SpaceAxis::Role::kReduced;
  const std::int64_t enough = !reduced ? kShortKept : space.phases > 2 ? kShortNorm : kShortRow;
  if (lengths[inner] >= enough) return -1;
  for (std::size_t axis = space.axes.size(); axis-- > 0;)
    if (axis != inner && lengths[axis] >= kAcross) return static_cast<int>(axis);
  return -1;
}

}  // namespace

Schedule choose_cpu(const Space& space, std::span<const std::int64_t> lengths) {
  const Lengths l(space, lengths);
  Schedule s;
  s.target = Target::kCpu;
  s.unroll = space.loads > 6 || space.reductions > 4 ? 2 : 4;
  const auto is_reduced = [&](int axis) {
    return axis >= 0 &&
           space.axes[static_cast<std::size_t>(axis)].role == SpaceAxis::Role::kReduced;
  };
  switch (space.kind) {
    case GroupKind::kTiledTranspose:
      s.tile = 64;
      s.cross = 64;
      s.hold = Hold::kScratch;
      return s;
    case GroupKind::kRowCol:
      s.rows = std::clamp<std::int64_t>(floor_power(l.columns / 64), 16, 1024);
      s.tile = kColumns;
      s.hold = Hold::kScratch;
      return s;
    case GroupKind::kReduce:
    case GroupKind::kRowNorm:
    case GroupKind::kColNorm: break;
    default:
      s.lanes = lanes_across(space, lengths);
      s.tile = s.lanes < 0 ? kStream : std::max(kColumns, floor_power(kRows / l.inner));
      if (s.lanes >= 0) s.hold = Hold::kScratch;
      return s;
  }
  s.lanes = lanes_across(space, lengths);
  const bool norm = space.kind != GroupKind::kReduce;
  const bool lane_reduced = is_reduced(s.lanes < 0 ? space.inner : s.lanes);
  if (s.lanes >= 0 && !lane_reduced && l.reduced < kShortNorm) {
    // Each lane has a row of its own, kept in memory that is near.
    s.tile = std::max(kColumns, floor_power(kRows / l.reduced));
    s.hold = Hold::kScratch;
    return s;
  }
  if (s.lanes >= 0 && lane_reduced && !is_reduced(space.inner)) {
    // Lanes run down the columns, one column after the other while the rows are near.
    if (l.reduced >= kPart / l.inner) {
      s.split = floor_power(kStream / l.inner);
      s.staged = norm;
      s.hold = Hold::kScratch;
      s.tile = std::max(kColumns, floor_power(kStream / l.inner));
    } else if (norm) {
      s.hold = Hold::kScratch;
    }
    return s;
  }
  if (lane_reduced) {
    if (l.parallel < kCpuFewRows && l.reduced >= kCpuLongRow) {
      s.split = space.inner > 0 && l.inner < l.reduced
                    ? std::max<std::int64_t>(1, floor_power(kPart / l.inner))
                    : kPart;
      s.staged = norm;
      s.tile = kStream;
    } else if (norm && l.reduced <= kHeld) {
      s.hold = Hold::kScratch;
    }
    return s;
  }
  // Lanes are neighbours that each walk down their own row: wide enough to read memory in a stream.
  const auto across = static_cast<int>(std::clamp<std::int64_t>(floor_power(l.inner / 16), 1, 8));
  if (space.reductions == 1 && space.loads <= 2) s.unroll = across;
  s.tile = kColumns;
  if (l.reduced >= 512 && (!norm || l.reduced * kColumns > kNear)) {
    s.split = 256;
    s.staged = norm;
    s.tile = 4096;
  }
  return s;
}

}  // namespace segfuse::compiler
