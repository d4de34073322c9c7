#pragma once
// Forward and backward values of one row in the log domain, in double: what sampling, k-best,
// constraints, tails and risks are built on. Slower than the engine's own passes, with more
// freedom: a score per frame beyond K, boundaries that are forced, and max in place of
// log-sum-exp.
//
// Values at a boundary are relative to a whole number that is kept per boundary, so that they stay
// small, and exact sums of them stay exact, at any length.

#include <cstdint>
#include <vector>

#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

/// What a lattice runs over. The row has at least one frame.
struct LatticeInput {
  const Model& model;
  const Row& row;
  /// (stride) or null. With it a segment may have d > K frames, at the score of K frames plus
  /// (d - K) tail[c].
  const double* tail = nullptr;
  /// (length) or null: where not 0, a segment must start.
  const std::uint8_t* forced = nullptr;

  bool is_forced(std::int64_t t) const { return forced != nullptr && forced[t] != 0; }
};

enum class Sum { kLog, kMax };

struct Lattice {
  Sum sum = Sum::kLog;
  double log_partition = kNegInf;  ///< or the best score
  /// Boundaries t in [0, L], (L+1, stride) each:
  AlignedDoubles value;  ///< prefixes whose last segment has label c and ends at t; t >= 1
  AlignedDoubles open;   ///< with a tail: prefixes with a segment of c of at least K frames up to t
  AlignedDoubles rest;   ///< suffixes from t after a segment of c; t >= 1
  AlignedDoubles sink;   ///< rest plus the end score of frame t-1; t >= 1
  AlignedDoubles
      open_rest;  ///< with a tail: suffixes from t that may go on in a segment of K frames
  /// Boundaries in [0, L), (L, stride) each; only where transitions do not depend on duration:
  AlignedDoubles source;  ///< prefixes up to t and the start score of a segment of c at t
  AlignedDoubles
      inner;  ///< suffixes from t whose first segment has label c, without its start score
  std::vector<double> base;               ///< of value, open and source
  std::vector<double> rest_base;          ///< of the others
  std::vector<std::int64_t> first_start;  ///< [t]: earliest start of a table segment that ends at t
  std::vector<std::int64_t> last_end;     ///< [s]: latest end of a table segment from s

  /// A transition matrix, or all slices of one, also as exponentials relative to its columns.
  struct Matrix {
    const double* log = nullptr;
    AlignedDoubles linear;
    AlignedDoubles column_max;  ///< (slices, stride)
  };
  // Scratch.
  Matrix transition;
  Matrix backwards;
  Matrix timed;  ///< one slice, with the transition scores of one boundary
  AlignedDoubles timed_log;
  AlignedDoubles shares;
  AlignedDoubles segment_counts;
  AlignedDoubles change_counts;
  AlignedDoubles transposed;
  AlignedDoubles weights;
  AlignedDoubles linear_counts;
  double largest_transition = 0.0;
  double leaving_base = 0.0;  ///< of the segments that start at the backward pass's boundary
  AlignedDoubles terms;
  AlignedDoubles pairs;
  AlignedDoubles entered;
  AlignedDoubles content;
  AlignedDoubles shifts;
};

/// Fills the forward half and returns the log-partition (the best score with Sum::kMax). Throws
/// DataError where finite scores add up to more than a double holds.
double lattice_forward(const LatticeInput& input, Sum sum, Lattice& lattice);

/// The forward pass by hand, for rows that arrive bit by bit. The row is a window of `row.length`
/// frames. begin makes room; then, for t = 1, 2, ..: leave(t - 1) starts segments at a boundary
/// (its start scores must be there), arrive(t) ends them (frame t-1 must be there). After arrive,
/// `terms` has one row for each table duration that fits, relative to base[t-1] and without the
/// end score, and with a tail one more, for the segments that go on beyond K.
void lattice_begin(const LatticeInput& input, Sum sum, Lattice& lattice);
void lattice_leave(const LatticeInput& input, Lattice& lattice, std::int64_t t);
void lattice_arrive(const LatticeInput& input, Lattice& lattice, std::int64_t t);
/// Moves boundaries [first, last] to the front. Boundary 0 is then not the row's first, and must
/// not be in a window any more: keep K before the next.
void lattice_move(const LatticeInput& input, Lattice& lattice, std::int64_t first,
                  std::int64_t last);

/// The backward pass by hand, over a window of `row.length` frames. begin makes room, and where the
/// row ends with the window says so; else rest, sink and rest_base of the last K + 1 boundaries
/// have to be put there. back fills rest, sink (t >= 1) and inner of a boundary from those behind
/// it.
void lattice_begin_backward(const LatticeInput& input, Lattice& lattice, bool row_ends);
void lattice_back(const LatticeInput& input, Lattice& lattice, std::int64_t s);

/// After a finite forward pass: the backward half, and with Sum::kLog the expected counts where
/// they are requested. tail_count: (stride) expected frames beyond K by label.
void lattice_backward(const LatticeInput& input, Lattice& lattice, RowExpectations* counts,
                      double* tail_count);

/// Zeros in the counts that are wanted, and in tail_count if there.
void clear_counts(const LatticeInput& input, RowExpectations& counts, double* tail_count);

/// Prefixes that a segment (s, k, c) may follow, its start score included, relative to base[s].
/// k > K is treated as K.
double lattice_enter(const LatticeInput& input, const Lattice& lattice, std::int64_t s,
                     std::int64_t k, std::int64_t c);

/// Calls visit(k, score) for segments of k = 1, 2, ... table frames of label c that end at t: the
/// prefixes up to the segment's end, without its end score, relative to base[t]. Stops where a
/// frame forbids the label, and when visit returns false.
template <class Visit>
void for_segments_ending(const LatticeInput& x, const Lattice& lattice, std::int64_t t,
                         std::int64_t c, const Visit& visit) {
  const std::int64_t stride = x.model.dims.stride;
  double content = 0.0;
  for (std::int64_t s = t - 1; s >= lattice.first_start[static_cast<std::size_t>(t)]; --s) {
    content += x.row.emission[s * stride + c];
    if (content == kNegInf) return;
    const double shift =
        lattice.base[static_cast<std::size_t>(s)] - lattice.base[static_cast<std::size_t>(t)];
    const double inside = content + x.model.duration[(t - s - 1) * stride + c];
    if (!visit(t - s, (lattice_enter(x, lattice, s, t - s, c) + shift) +
                          (inside + x.row.segments(s, t - s, c))))
      return;
  }
}

/// log P(segment of k <= K frames of c from s on) after both halves, without a tail.
double lattice_segment(const LatticeInput& input, const Lattice& lattice, std::int64_t s,
                       std::int64_t k, std::int64_t c);

/// Score of segments [first, last) as one segmentation of the row, tail included.
double lattice_score(const LatticeInput& input, const SegmentationsView& segments,
                     std::int64_t first, std::int64_t last);

}  // namespace segfuse::semicrf
