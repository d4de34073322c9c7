#pragma once
// The factored algorithm for transitions that do not depend on duration: O(L (C^2 + K C)) a row.
//
// Two mirrored passes. Forward (step -1), from frame 0 to L, and backward (step +1), from L to 0:
//
//   source[t] = linked[t] + enter score                 linked[0] = initial / linked[L] = final
//   value[t]  = LSE_{k=1..min(K, ..)} ( source[t + step k] + content + duration[k-1] ) + leave
//   score linked[t] = LSE_from ( value[t][from] + transition )
//
// where forward value = alpha, linked = gamma; backward value = delta, linked = beta
// (docs/semicrf.md). Both sums are formed in the linear domain: a window holds
// exp(source + content - reference[c]); absorbing a frame's emission only moves the reference, and
// the window is rescaled when a new source is too large for it. A sum too small to be trusted
// is formed again in the log domain, so that no range of scores loses accuracy. Values are kept
// relative to base[t], an integer, so that bases add without rounding for any length.

#include <cstdint>
#include <vector>

#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

// Ranges of the linear domain. exp is 0 below -707. A window entry is at most e^250 and a duration
// factor at most 1, so what underflow drops from a window's sum is below K e^(250-707); a sum above
// e^-400 is exact to rounding. Products of two entries stay below e^650.
inline constexpr double kLargestSource = 250.0;         // log
inline constexpr double kLargestWeight = 400.0;         // log
inline constexpr double kSmallestWindowSum = 0x1p-577;  // e^-400
inline constexpr double kSmallestLinkSum = 0x1p-865;    // e^-600; C e^-707 is dropped

/// Boundaries of a pass whose window sums are begun together: the rows known by then are read once.
inline constexpr std::int64_t kTile = 4;

/// The shared scores as factors at most 1 and the maxima taken out of them.
struct FactoredTables {
  AlignedDoubles duration;      ///< (K + kTile, stride) exp(duration - duration_max), then zeros
  AlignedDoubles duration_max;  ///< (stride)
  AlignedDoubles into;          ///< (C, stride) [from, to] exp(transition - into_max[to])
  AlignedDoubles into_max;      ///< (stride)
  AlignedDoubles out_of;        ///< (C, stride) [to, from] exp(transition - out_of_max[from])
  AlignedDoubles out_of_max;    ///< (stride)
  AlignedDoubles transition;    ///< (C, stride) exp(transition - transition_max)
  AlignedDoubles transposed;    ///< (C, stride) [to, from] transition
  double transition_max = 0.0;
};

void make_tables(const Model& model, FactoredTables& tables);

/// One direction over one row; (L+1, stride) each, row t is the boundary before frame t.
struct Pass {
  int step = -1;                  ///< where earlier results lie: -1 forward, +1 backward
  const double* enter = nullptr;  ///< frame scores added to a source; null when absent
  const double* leave = nullptr;
  AlignedDoubles linked;
  AlignedDoubles source;  ///< linked + enter; unused without enter scores
  AlignedDoubles value;
  AlignedDoubles linear;     ///< exp(value), within a factor of 2 of 1 at the largest
  std::vector<double> base;  ///< (L+1) true value = base + stored value
  /// Frame whose emission joins when going from boundary t + step to t.
  std::int64_t frame(std::int64_t t) const { return step < 0 ? t - 1 : t; }
  const AlignedDoubles& sources() const { return enter != nullptr ? source : linked; }
};

/// The sliding window of a pass, and its per-class sums.
struct Window {
  AlignedDoubles rows;       ///< (L+1, stride) exp(source + content - reference)
  AlignedDoubles reference;  ///< (stride)
  AlignedDoubles sum;        ///< (stride) sum over the window, times exp(duration - duration_max)
  AlignedDoubles padding;    ///< (stride) 1 in padding, else 0
  AlignedDoubles ahead;      ///< (kTile, stride) the tile's sums over the rows known when it began
  std::int64_t tile_done = kTile;  ///< boundaries of the tile that are finished
};

/// Boundaries whose segments are not yet counted by duration: `first`, first - 1, ...
struct DurationTile {
  AlignedDoubles
      weights;  ///< (kTile, stride) probability of a segment over window entry and factor
  std::int64_t first = 0;
  std::int64_t pending = 0;
};

struct FactoredState {
  Pass forward;
  Pass backward;
  Window window;
  DurationTile tile;
  AlignedDoubles scratch;
  AlignedDoubles counts;
  AlignedDoubles cover;
  double log_rest = 0.0;  ///< log-partition minus forward.base[L]
};

/// Runs the forward pass and returns the log-partition; row.length > 0.
double factored_forward(const Model& model, const FactoredTables& tables, const Row& row,
                        FactoredState& state);

/// After factored_forward with a finite result: runs the backward pass and fills `out`.
void factored_expectations(const Model& model, const FactoredTables& tables, const Row& row,
                           FactoredState& state, RowExpectations& out);

/// log P(segment (start, duration, label)) after factored_expectations.
double factored_segment(const Model& model, const Row& row, const FactoredState& state,
                        std::int64_t start, std::int64_t duration, std::int64_t label);

// --- the log-domain side, for sums out of range (factored_exact.cpp) ---

/// Forms value[t][c] (without the leave score) in the log domain from pass.source, and puts the
/// window of class c on a new reference.
double exact_window(const Model& model, const Row& row, const Pass& pass, std::int64_t t,
                    std::int64_t c, Window& window);

/// source[t] from linked[t].
void add_enter(Pass& pass, std::int64_t t, std::int64_t stride);

/// LSE over labels of value[t] + transition for one label c.
double exact_link(const Model& model, const Pass& pass, std::int64_t t, std::int64_t c);

/// Adds the probabilities of all segments of label c that start at s to `duration` (K, stride).
void exact_durations(const Model& model, const Row& row, const FactoredState& state, std::int64_t s,
                     std::int64_t c, double* duration);

/// Adds the probabilities of all label pairs at boundary s to `transition` (C, stride).
void exact_transitions(const Model& model, const FactoredState& state, std::int64_t s,
                       double* transition);

/// Distance of boundary t from the normaliser: P = exp(forward + backward + offset).
inline double offset(const FactoredState& state, std::int64_t t) {
  const std::int64_t length = static_cast<std::int64_t>(state.forward.base.size()) - 1;
  return state.forward.base[t] + state.backward.base[t] - state.forward.base[length] -
         state.log_rest;
}

}  // namespace segfuse::semicrf
