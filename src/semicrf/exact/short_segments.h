#pragma once
// Probabilities of the segments of a few frames, from a lattice with both halves.

#include <algorithm>
#include <span>

#include "semicrf/exact/lattice.h"
#include "semicrf/exact/lattice_kernels.h"

namespace segfuse::semicrf {

inline double sum_over(const double* values, std::int64_t n) {
  double sum = 0.0;
  for (std::int64_t i = 0; i < n; ++i) sum += values[i];
  return sum;
}

class ShortSegments {
 public:
  /// Those of at most `most` frames.
  ShortSegments(const LatticeInput& input, const Lattice& lattice, std::int64_t most)
      : x_(input), lattice_(lattice), most_(most) {
    for (AlignedDoubles* b : {&terms_, &entry_, &sums_})
      b->assign(input.model.dims.stride, kNegInf);
  }

  /// out[d - 1] = P(segment (s, d), any label) for those that are possible; leaves the others.
  void starting_at(std::int64_t s, std::span<double> out);

 private:
  const LatticeInput& x_;
  const Lattice& lattice_;
  std::int64_t most_;
  AlignedDoubles content_, terms_, entry_, sums_;
};

inline void ShortSegments::starting_at(std::int64_t s, std::span<double> out) {
  const Dims& dims = x_.model.dims;
  const std::int64_t stride = dims.stride;
  content_.assign(stride, 0.0);
  for (std::int64_t d = 1; d <= std::min(most_, x_.row.length - s); ++d) {
    if (d > 1 && x_.is_forced(s + d - 1)) break;
    const std::int64_t k = std::min(d, dims.max_duration);
    if (d > k && x_.tail == nullptr) break;
    for (std::int64_t c = 0; c < dims.classes; ++c) {
      content_[c] += x_.row.emission[(s + d - 1) * stride + c];
      terms_[c] = content_[c] + x_.model.duration[(k - 1) * stride + c] + x_.row.segments(s, k, c) +
                  lattice_.sink[(s + d) * stride + c];
      if (d > k) terms_[c] += static_cast<double>(d - k) * x_.tail[c];
      entry_[c] = lattice_enter(x_, lattice_, s, k, c);
    }
    sums_.assign(stride, 0.0);
    add_exp_rows(terms_.data(), entry_.data(),
                 lattice_.base[static_cast<std::size_t>(s)] +
                     lattice_.rest_base[static_cast<std::size_t>(s + d)] - lattice_.log_partition,
                 1, stride, sums_.data());
    out[static_cast<std::size_t>(d - 1)] = sum_over(sums_.data(), dims.classes);
  }
}

}  // namespace segfuse::semicrf
