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
           g.final.empty() && g.start.empty() && g.end.empty());
}

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
  void begin(const Dims& dims, bool want_transition, bool want_duration);
  std::int64_t rows_per_wave() const { return wave_; }
  double* slot(std::int64_t index) { return slots_.data() + index * slot_size_; }
  void skip(double* slot) const { slot[slot_size_ - 1] = 0.0; }
  void fill(double* slot, const RowExpectations& expectations, std::int64_t length) const;
  void reduce(std::int64_t begin, std::int64_t end, const View<const double, 1>& weights);
  template <class T>
  void store(const Gradients<T>& gradients) const;

 private:
  Dims dims_;
  std::int64_t transition_ = 0;  ///< doubles of a slot: transition, duration, initial, final, flag
  std::int64_t duration_ = 0;
  std::int64_t slot_size_ = 0;
  std::int64_t wave_ = 1;
  AlignedDoubles slots_;
  AlignedDoubles total_;
};

}  // namespace segfuse::semicrf
