#pragma once
// The factored algorithm in the linear domain throughout: no logarithm anywhere in a pass, and one
// exponential per frame and class. The fastest path; it serves scores of ordinary range and gives
// up on rows whose range it cannot hold, which factored.h then takes.
//
// Two mirrored passes over boundaries t, forward (step -1) from 0 to L and backward (step +1) from
// L to 0, as in factored.h, with true values = stored values * 2^exponent[t]:
//
//   value[t]  = reference * sum_{k=1..min(K, ..)} exp(duration[k-1]) * window[k] * exp(leave)
//   linked[t] = sum_from value[t][from] * exp(transition)
//   window   <- linked[t] * exp(enter) / reference
//
// The reference of a class is the product of exp(emission) since it was last reset, so a frame
// moves K window entries by one multiplication. Whole powers of two are taken out of every frame,
// so exponents add without rounding for any length.
//
// Zero means exactly "no path": a stored value that is not zero stays between the bounds below, and
// a row that breaks them is given up.

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <vector>

#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

// Bounds, as powers of two. A product of an entry and a table factor stays a normal double.
inline constexpr double kSmallestFactor = -300.0;  ///< natural log of a table's smallest factor
inline constexpr double kSmallestSlice = -150.0;   ///< of a transition and duration together
inline constexpr double kLargestFactor = 100.0;    ///< natural log
inline constexpr double kWidestFrame = 170.0;      ///< natural log of a frame's largest ratio
inline constexpr double kSmallestValue = 0x1p-400;
inline constexpr double kSmallestValueBySlice = 0x1p-200;  ///< for transitions by duration
inline constexpr double kLargestValue = 0x1p+300;
inline constexpr double kSmallestEntry = 0x1p-500;
inline constexpr double kLargestEntry = 0x1p+700;
inline constexpr double kLargestSegmentWeight = 0x1p+300;  ///< of a segment beside its entry
// References are reset outside [1 / kLargestInverse, kLargestReference]: they fall, as a label that
// goes on falls behind the best path.
inline constexpr double kLargestInverse = 0x1p+400;
inline constexpr double kLargestReference = 0x1p+100;
/// log2 of a boundary's distance to the normaliser.
inline constexpr std::int64_t kLargestScale = 300;

/// Boundaries whose window sums are begun together: the entries known by then are read once.
inline constexpr std::int64_t kSumTile = 4;
/// Boundaries whose transitions are counted together.
inline constexpr std::int64_t kCountTile = 32;
/// Boundaries that a pass keeps when nobody reads them later; a power of two, two count tiles.
inline constexpr std::int64_t kKeptBoundaries = 2 * kCountTile;
/// Rows that one thread works on in lockstep, which hides the latency of a step.
inline constexpr std::int64_t kLockstep = 2;

/// The shared scores as factors. With transitions by duration the slices hold the durations too.
struct ScaledTables {
  AlignedDoubles duration;  ///< (K + kSumTile, stride) exp(duration), then zeros
  AlignedDoubles into;      ///< (slices, C, stride) [from, to] exp(transition)
  AlignedDoubles out_of;    ///< (slices, C, stride) [to, from]
  AlignedDoubles initial;   ///< (stride)
  AlignedDoubles final;     ///< (stride)
  AlignedDoubles enough;    ///< (stride) beside a window entry this large, older ones below
                            ///< kSmallestEntry do not matter
  bool in_range = false;
};

void make_scaled_tables(const Model& model, ScaledTables& tables);

/// A row's frame scores as factors, (L, stride): emission[t] * 2^exponent[t].
struct FrameFactors {
  AlignedDoubles emission;
  AlignedDoubles start;  ///< without exponents; unused without start scores
  AlignedDoubles end;
  std::vector<std::int32_t> exponent;
  std::vector<std::uint8_t> forbids;  ///< some label is forbidden; its factor is stored as 1
};

/// One direction over one row. Boundary t is the one before frame t; its values lie in row
/// t & mask, so that a pass nobody reads later keeps to the cache.
struct ScaledPass {
  int step = -1;                  ///< where earlier results lie: -1 forward, +1 backward
  const double* enter = nullptr;  ///< factors of a source by frame; null when absent
  const double* leave = nullptr;
  AlignedDoubles value;
  AlignedDoubles linked;
  std::int64_t mask = ~std::int64_t{0};
  std::vector<std::int64_t> exponent;  ///< (L+1)
  std::int64_t row(std::int64_t t) const { return t & mask; }
  /// Frame whose emission joins when going from boundary t + step to t.
  std::int64_t frame(std::int64_t t) const { return step < 0 ? t - 1 : t; }
};

/// The sliding window of a pass: its newest entries, in the order in which they came.
struct ScaledWindow {
  AlignedDoubles entries;    ///< (capacity, stride)
  AlignedDoubles reference;  ///< (stride)
  AlignedDoubles inverse;    ///< (stride) 1 / reference
  AlignedDoubles
      ahead;  ///< (kSumTile, stride) the tile's sums over the entries known when it began
  AlignedDoubles
      dropped;  ///< (stride) boundaries for which dropped entries count; empty if none may be
  AlignedDoubles extremes;  ///< (4, kLanes) smallest and largest values and entries so far
  std::int64_t capacity = 0;
  std::int64_t kept = 0;    ///< entries that must stay
  std::int64_t newest = 0;  ///< row of the newest entry
  std::int64_t steps = 0;   ///< boundaries done
  std::int64_t tile_done = kSumTile;
  std::int64_t exponent = 0;
  std::int64_t lag = 0;  ///< exponent of the last boundary's largest value, taken out at the next
  bool failed = false;
};

/// Boundaries whose segments are not yet counted by duration, oldest first.
struct PendingDurations {
  AlignedDoubles
      weights;  ///< (kCountTile, stride) probability of a segment over entry and duration factor
  std::int64_t count = 0;
};

struct ScaledState {
  FrameFactors frames;
  ScaledPass forward;
  ScaledPass backward;
  ScaledWindow window;
  PendingDurations pending;
  AlignedDoubles duration_counts;    ///< (K, stride) without the duration factors
  AlignedDoubles transition_counts;  ///< (slices, stride, stride) without the transition factors
  AlignedDoubles left;   ///< (kCountTile, stride) forward values on the normaliser's scale
  AlignedDoubles cover;  ///< (stride) running label posterior
  // For transitions by duration.
  AlignedDoubles products;     ///< (9, stride) operands of one slice
  AlignedDoubles segments;     ///< (kCountTile, stride) segments of one duration
  std::int64_t tile_done = 0;  ///< backward boundaries so far
  std::int64_t taken_out = 0;  ///< exponent taken out since the tile began
  std::int64_t last_lag = 0;   ///< exponent of the last boundary
  // For a part of a row: (K, stride) windows, newest first.
  AlignedDoubles incoming;  ///< of the pass, where the part's own boundaries begin
  AlignedDoubles outgoing;  ///< of the forward pass, where they end
  // Normaliser = rest * 2^rest_exponent, on the scale of forward times backward values.
  double rest = 0.0;
  std::int64_t rest_exponent = 0;
};

/// Which part of a longer row a ScaledRow is, for chunked.h: its own boundaries [begin, end) are
/// counted, and what lies before and behind them is there to forget the guesses it starts from.
struct RowPart {
  std::int64_t origin = 0;  ///< its first frame in the whole row
  std::int64_t begin = 0;
  std::int64_t end = 0;
  std::int64_t total = 0;    ///< frames of the whole row
  bool guess_start = false;  ///< the forward pass starts from a guess
  bool guess_end = false;    ///< the backward pass does
  bool resume = false;       ///< the window is that of a neighbour: start at `begin` or `end`
};

/// One row at work. `ok` turns false when its scores do not fit the bounds.
struct ScaledRow {
  const Model* model = nullptr;
  const ScaledTables* tables = nullptr;
  Row row;
  ScaledState* state = nullptr;
  RowExpectations* out = nullptr;  ///< for scaled_expectations
  RowPart part;
  bool keep_backward = false;  ///< scaled_segment will be called
  double log_partition = 0.0;
  bool ok = true;
};

/// Runs the forward pass over up to kLockstep rows, none empty, and sets log_partition.
void scaled_forward(ScaledRow* const* rows, std::int64_t n);

/// The window of a pass on the scale of its boundary: (K, stride), newest first.
void window_at_boundary(const ScaledWindow& window, std::int64_t longest, std::int64_t stride,
                        AlignedDoubles& out);

/// After scaled_forward with finite results: runs the backward pass and fills `out`.
void scaled_expectations(ScaledRow* const* rows, std::int64_t n);

/// log P(segment (start, duration, label)) after scaled_expectations.
double scaled_segment(const ScaledRow& row, std::int64_t start, std::int64_t duration,
                      std::int64_t label);

/// Distance of boundary t from the normaliser: P = forward * backward * scale. Turns `ok` false
/// when that is out of range.
inline double scale_of(ScaledRow& x, std::int64_t t) {
  const ScaledState& state = *x.state;
  const std::int64_t exponent =
      state.forward.exponent[t] + state.backward.exponent[t] - state.rest_exponent;
  x.ok &= exponent < kLargestScale && exponent > -kLargestScale;
  return std::ldexp(1.0 / state.rest,
                    static_cast<int>(std::clamp(exponent, -kLargestScale, kLargestScale)));
}

}  // namespace segfuse::semicrf
