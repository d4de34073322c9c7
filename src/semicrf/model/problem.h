#pragma once
// Checked inputs of a call, and one row of it as dense doubles: what every algorithm works on.
// Class axes are padded to `stride`; padding holds -inf in score tables and 0 in frames.

#include <algorithm>
#include <cstdint>
#include <functional>
#include <limits>

#include "base/thread_pool.h"
#include "segfuse/semicrf.h"
#include "semicrf/model/aligned_doubles.h"
#include "semicrf/model/tables.h"

namespace segfuse::semicrf {

inline constexpr double kNegInf = -std::numeric_limits<double>::infinity();

struct Dims {
  std::int64_t batch = 0;
  std::int64_t frames = 0;
  std::int64_t classes = 0;
  std::int64_t stride = 0;  ///< classes, padded
  std::int64_t max_duration = 0;
  bool by_duration = false;  ///< transition has K slices, not one
  bool segment_scores = false;
  bool transition_scores = false;
  bool shared_transition_scores = false;  ///< one table for all rows
  std::int64_t slices() const { return by_duration ? max_duration : 1; }
};

/// Checks all shapes and lengths, and that there are no tables; UsageError.
template <class T>
Dims check_potentials(const Potentials<T>& potentials);
/// The same for functions that take segment_scores and transition_scores.
template <class T>
Dims check_with_tables(const Potentials<T>& potentials);
template <class T>
bool has_tables(const Potentials<T>& p) {
  return !p.segment_scores.empty() || !p.transition_scores.empty();
}
template <class T>
void check_gradients(const Gradients<T>& gradients, const Dims& dims);
/// Checks one per-row or per-item view of n elements, if there.
void check_vector(const char* name, bool empty, std::int64_t extent, std::int64_t n);
void check_weights(const View<const double, 1>& weights, const Dims& dims);

/// The scores that all rows share.
struct Model {
  Dims dims;
  AlignedDoubles transition;  ///< (slices, C, stride) [., from, to]
  AlignedDoubles duration;    ///< (K, stride)
  AlignedDoubles initial;     ///< (stride)
  AlignedDoubles final;       ///< (stride)
  const double* transition_slice(std::int64_t duration_index) const {
    const std::int64_t slice = dims.by_duration ? duration_index : 0;
    return transition.data() + slice * dims.classes * dims.stride;
  }
};

/// Throws DataError for NaN or +inf.
template <class T>
void load_model(const Potentials<T>& potentials, const Dims& dims, Model& model);

/// What all frames share, of scores whose frames come later; tables, for check_potentials to
/// refuse.
template <class T>
Potentials<T> shared_scores(const Potentials<T>& all) {
  Potentials<T> shared;
  shared.transition = all.transition;
  shared.duration = all.duration;
  shared.initial = all.initial;
  shared.final = all.final;
  shared.emission = {nullptr, {1, 0, all.duration.extent(1)}};
  shared.segment_scores = all.segment_scores;
  shared.transition_scores = all.transition_scores;
  return shared;
}

/// One row's frame scores, (length, stride) each; start and end are null when absent. Its tables
/// are read where the caller has them.
struct Row {
  std::int64_t length = 0;
  const double* emission = nullptr;
  const double* start = nullptr;
  const double* end = nullptr;
  SegmentTable segments = {};
  TransitionTable transitions = {};
  bool has_tables() const { return segments.present() || transitions.present(); }
};

struct RowBuffers {
  AlignedDoubles emission;
  AlignedDoubles start;
  AlignedDoubles end;
};

std::int64_t row_length(const Lengths& lengths, const Dims& dims, std::int64_t row);

/// Calls body(begin, end) for all frames, in parts over the pool's threads where there are many.
template <class Body>
void for_frames(ThreadPool* pool, std::int64_t frames, const Body& body) {
  constexpr std::int64_t kPart = 4096;
  if (pool == nullptr || frames <= kPart) return body(std::int64_t{0}, frames);
  const auto part = [&](std::int64_t i) { body(i * kPart, std::min(frames, (i + 1) * kPart)); };
  pool->run((frames + kPart - 1) / kPart, std::ref(part));
}

/// Reads frames [0, length) of a row, and checks its part of the tables. Throws DataError for NaN
/// or +inf.
template <class T>
Row load_row(const Potentials<T>& potentials, const Dims& dims, std::int64_t row,
             RowBuffers& buffers, ThreadPool* pool = nullptr);

/// Expected counts of one row under the model, filled by an algorithm.
struct RowExpectations {
  AlignedDoubles label;       ///< (length, stride) P(label_t = c)
  AlignedDoubles start;       ///< (length, stride) P(a segment of c starts at t)
  AlignedDoubles end;         ///< (length, stride) P(a segment of c has its last frame at t)
  AlignedDoubles transition;  ///< (slices, C, stride); only when wanted
  AlignedDoubles duration;    ///< (K, stride); only when wanted
  bool want_transition = true;
  bool want_duration = true;
  bool want_boundaries = true;    ///< else only the first row of start and the last of end count
  TableCounts* tables = nullptr;  ///< where the counts of tables go; null: nowhere
};

/// A sum over segmentations, or the score of one. DataError where finite scores add up to more than
/// a double holds, so that the sum is infinite or NaN.
double need_finite_sum(double sum);
/// More than the frames of any path add up to: the largest score of each frame that is above 0.
double most_of_frames(const Row& row, const Dims& dims);

/// Score of segments [first, last) of `segments` as one segmentation of the row; -inf if forbidden.
double score_row(const Model& model, const Row& row, const SegmentationsView& segments,
                 std::int64_t first, std::int64_t last);

/// Checks the packing: row pointers, sizes, durations in [1, K], labels < C, frames inside rows.
/// With `tiling`, each row's segments must tile it.
void check_segments(const SegmentationsView& segments, const Dims& dims, const Lengths& lengths,
                    bool tiling);

}  // namespace segfuse::semicrf
