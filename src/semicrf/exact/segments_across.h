#pragma once
// Sums over the segments that go across a boundary, from a lattice with both halves.

#include <algorithm>
#include <cstdint>
#include <vector>

#include "semicrf/exact/lattice.h"
#include "semicrf/exact/lattice_kernels.h"

namespace segfuse::semicrf {

/// Log-sums for each label, relative to base[g] + rest_base[g]. No tail, no forced boundaries, and
/// transitions that do not depend on durations.
class SegmentsAcross {
 public:
  explicit SegmentsAcross(const Dims& dims) : dims_(dims) {
    for (AlignedDoubles* b : {&all_, &late_}) b->assign(dims.stride, kNegInf);
    for (AlignedDoubles* b : {&content_, &before_}) b->assign(dims.stride, 0.0);
  }

  /// Those that start before boundary g and end after it, and of these those that end `later` or
  /// more frames after it; later >= 1. Boundaries g and on have their rest.
  void find(const LatticeInput& input, const Lattice& lattice, std::int64_t g, std::int64_t later);
  const double* all() const { return all_.data(); }
  const double* late() const { return late_.data(); }

 private:
  Dims dims_;
  std::vector<double> shifts_;
  AlignedDoubles content_;  ///< of the frames from the segment's start to the one that is added
  AlignedDoubles before_;   ///< of those before g
  AlignedDoubles terms_, all_rows_, late_rows_, all_, late_;
};

inline void SegmentsAcross::find(const LatticeInput& input, const Lattice& lattice, std::int64_t g,
                                 std::int64_t later) {
  const std::int64_t stride = dims_.stride;
  const std::int64_t starts = std::min(dims_.max_duration - 1, g);
  const std::int64_t reach = std::min(dims_.max_duration - 1, input.row.length - g);
  const auto base = [](const std::vector<double>& of, std::int64_t t) {
    return of[static_cast<std::size_t>(t)];
  };
  shifts_.clear();
  for (std::int64_t e = g + 1; e <= g + reach; ++e)
    shifts_.push_back(base(lattice.rest_base, e) - base(lattice.rest_base, g));
  terms_.resize(reach * stride);
  for (AlignedDoubles* rows : {&all_rows_, &late_rows_}) rows->resize(starts * stride);
  before_.assign(stride, 0.0);
  for (std::int64_t i = 0; i < starts; ++i) {
    const std::int64_t s = g - 1 - i;
    for (std::int64_t c = 0; c < stride; ++c) before_[c] += input.row.emission[s * stride + c];
    std::copy_n(before_.data(), stride, content_.data());
    const std::int64_t n = std::min(reach, dims_.max_duration - (g - s));
    extend_rows({lattice.sink.data() + (g + 1) * stride, stride, input.row.emission + g * stride,
                 stride, shifts_.data(), input.model.duration.data() + (g - s) * stride},
                n, stride, content_.data(), terms_.data());
    const std::int64_t first = std::min(later - 1, n);
    double* all = all_rows_.data() + i * stride;
    double* late = late_rows_.data() + i * stride;
    log_sum_rows(terms_.data(), n, stride, all);
    log_sum_rows(terms_.data() + first * stride, n - first, stride, late);
    const double shift = base(lattice.base, s) - base(lattice.base, g);
    for (double* row : {all, late})
      for (std::int64_t c = 0; c < stride; ++c) row[c] += lattice.source[s * stride + c] + shift;
  }
  log_sum_rows(all_rows_.data(), starts, stride, all_.data());
  log_sum_rows(late_rows_.data(), starts, stride, late_.data());
}

}  // namespace segfuse::semicrf
