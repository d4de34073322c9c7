#pragma once
// From a row's expected counts to gradients: gold counts off, row parts stored, shared parts summed
// over rows in row order.

#include <cstdint>
#include <vector>

#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

template <class T>
bool wants_any(const Gradients<T>& g) {
  return !(g.emission.empty() && g.transition.empty() && g.duration.empty() && g.initial.empty() &&
           g.final.empty() && g.start.empty() && g.end.empty() && g.segment_scores.empty() &&
           g.transition_scores.empty());
}

/// Stores a row's gradients by tables while their counts are made: weight * (counts - gold), and 0
/// for what reaches beyond the row.
template <class T>
class TableGradients : public TableCounts {
 public:
  TableGradients(const Gradients<T>& gradients, const Dims& dims, std::int64_t b)
      : gradients_(gradients), dims_(dims), b_(b) {
    want_segments = !gradients.segment_scores.empty();
    want_transitions = !gradients.transition_scores.empty();
  }
  /// Zeros where a row of `length` frames has no counts; 0: everywhere. `shared` is the row's part
  /// (T, C, stride) where all rows have one table of transitions.
  void clear(std::int64_t length, double* shared);
  /// What the counts come with; gold may be null.
  void begin(double weight, const SegmentationsView* gold) {
    weight_ = weight;
    gold_ = gold;
  }
  void segments(std::int64_t s, std::int64_t n, double* counts) override;
  void transitions(std::int64_t s, double* counts) override;

 private:
  /// The gold segment that starts at s, or -1.
  std::int64_t gold_at(std::int64_t s) const;

  const Gradients<T>& gradients_;
  const Dims& dims_;
  std::int64_t b_;
  double weight_ = 1.0;
  const SegmentationsView* gold_ = nullptr;
  double* shared_ = nullptr;
};

/// Subtracts the counts of row b's segments.
void subtract_counts(const Dims& dims, const SegmentationsView& gold, std::int64_t b,
                     RowExpectations& expectations);

/// view(b, t, c) = weight * frames[t][c] for t < length, 0 from there on. Nothing for an empty
/// view.
template <class T>
void store_frames(const View<T, 3>& view, std::int64_t b, const Dims& dims, std::int64_t length,
                  const double* frames, double weight, ThreadPool* pool = nullptr);

/// The emission, start and end gradients of row b; zeros where length is 0.
template <class T>
void store_row_gradients(const Gradients<T>& gradients, const Dims& dims, std::int64_t b,
                         std::int64_t length, const RowExpectations* expectations, double weight,
                         ThreadPool* pool = nullptr);

/// Sums the gradients of shared inputs. Rows of a wave fill their slots in any order; reduce() adds
/// the slots up in row order. The size of a wave depends on the problem alone.
class GradientReducer {
 public:
  /// With `want_table` rows add up their gradients by one table of transitions.
  void begin(const Dims& dims, bool want_transition, bool want_duration, bool want_table = false);
  std::int64_t rows_per_wave() const { return wave_; }
  double* slot(std::int64_t index) { return slots_.data() + index * slot_size_; }
  void skip(double* slot) const { slot[slot_size_ - 1] = 0.0; }
  /// Where the row of a slot has its part of such a gradient, (T, C, stride), or null.
  double* table(double* slot) const {
    return table_ == 0 ? nullptr : slot + transition_ + duration_ + 2 * dims_.stride;
  }
  void fill(double* slot, const RowExpectations& expectations, std::int64_t length) const;
  void reduce(std::int64_t begin, std::int64_t end, const View<const double, 1>& weights);
  template <class T>
  void store(const Gradients<T>& gradients) const;

 private:
  Dims dims_;
  /// Doubles of a slot: transition, duration, initial, final, table, flag.
  std::int64_t transition_ = 0;
  std::int64_t duration_ = 0;
  std::int64_t table_ = 0;
  std::int64_t slot_size_ = 0;
  std::int64_t wave_ = 1;
  AlignedDoubles slots_;
  AlignedDoubles total_;
};

}  // namespace segfuse::semicrf
