#include "semicrf/model/posteriors.h"

#include <fmt/core.h>

#include <algorithm>

#include "segfuse/error.h"
#include "semicrf/model/gradients.h"

namespace segfuse::semicrf {
namespace {

/// Sum of expected counts times scores: the expected score. 0 * -inf counts as 0.
class ExpectedScore {
 public:
  void add(const double* count, const double* score, std::int64_t n) {
    if (score == nullptr) return;
    for (std::int64_t i = 0; i < n; ++i)
      if (score[i] > kNegInf) sum_ += count[i] * score[i];
  }
  /// Counts of labels are sums of differences: below a mask, rounding leaves some of them.
  void add_frames(const double* count, const double* score, std::int64_t length,
                  std::int64_t stride) {
    constexpr double kMask = -1e4;
    for (std::int64_t i = 0; i < length * stride; ++i) {
      const double rounding = 1e-15 * static_cast<double>(1000 + i / stride);
      if (score[i] > kMask || (score[i] > kNegInf && count[i] > rounding))
        sum_ += count[i] * score[i];
    }
  }
  double value() const { return sum_; }

 private:
  double sum_ = 0.0;
};

}  // namespace

ExpectedTables::ExpectedTables(const Row& row, const Dims& dims) : row_(row), dims_(dims) {
  want_segments = row.segments.present();
  want_transitions = row.transitions.present();
}

void ExpectedTables::add(const double* counts, std::int64_t n) {
  ExpectedScore sum;
  sum.add(counts, scores_.data(), n * dims_.stride);
  value_ += sum.value();
}

void ExpectedTables::segments(std::int64_t s, std::int64_t n, double* counts) {
  scores_.assign(n * dims_.stride, 0.0);
  row_.segments.add_starting(s, n, dims_.stride, scores_.data());
  add(counts, n);
}

void ExpectedTables::transitions(std::int64_t s, double* counts) {
  scores_.assign(dims_.classes * dims_.stride, 0.0);
  row_.transitions.add(s, dims_.stride, scores_.data());
  add(counts, dims_.classes);
}

double expected_score(const Model& model, const Row& row, const RowExpectations& e) {
  const Dims& dims = model.dims;
  const std::int64_t frames = row.length * dims.stride;
  ExpectedScore sum;
  sum.add_frames(e.label.data(), row.emission, row.length, dims.stride);
  sum.add(e.start.data(), row.start, frames);
  sum.add(e.end.data(), row.end, frames);
  sum.add(e.transition.data(), model.transition.data(), model.transition.size());
  sum.add(e.duration.data(), model.duration.data(), model.duration.size());
  sum.add(e.start.data(), model.initial.data(), dims.classes);
  sum.add(e.end.data() + frames - dims.stride, model.final.data(), dims.classes);
  return sum.value();
}

template <class T>
void check_posteriors(const Posteriors<T>& r, const Dims& d) {
  Gradients<T> shapes;
  shapes.emission = r.label;
  shapes.start = r.start;
  shapes.end = r.end;
  check_gradients(shapes, d);
  if (!r.boundary.empty() && (r.boundary.extent(0) != d.batch || r.boundary.extent(1) != d.frames))
    throw UsageError(fmt::format(
        "semicrf: the boundary posterior has shape ({}, {}), expected (B, T) = ({}, {})",
        r.boundary.extent(0), r.boundary.extent(1), d.batch, d.frames));
  if (!r.duration.empty() &&
      (r.duration.extent(0) != d.batch || r.duration.extent(1) != d.max_duration ||
       r.duration.extent(2) != d.classes))
    throw UsageError(
        fmt::format("semicrf: the duration posterior has shape ({}, {}, {}), expected (B, K, C) = "
                    "({}, {}, {})",
                    r.duration.extent(0), r.duration.extent(1), r.duration.extent(2), d.batch,
                    d.max_duration, d.classes));
  check_vector("entropy", r.entropy.empty(), r.entropy.extent(0), d.batch);
  check_vector("log_partition", r.log_partition.empty(), r.log_partition.extent(0), d.batch);
  check_vector("status", r.status.empty(), r.status.extent(0), d.batch);
}

template <class T>
void store_posteriors(const Posteriors<T>& r, const Dims& dims, std::int64_t b, std::int64_t length,
                      const RowExpectations* e) {
  const std::int64_t valid = e == nullptr ? 0 : length;
  store_frames(r.label, b, dims, valid, e == nullptr ? nullptr : e->label.data(), 1.0);
  store_frames(r.start, b, dims, valid, e == nullptr ? nullptr : e->start.data(), 1.0);
  store_frames(r.end, b, dims, valid, e == nullptr ? nullptr : e->end.data(), 1.0);
  if (!r.boundary.empty()) {
    for (std::int64_t t = 0; t < dims.frames; ++t) {
      double sum = 0.0;
      for (std::int64_t c = 0; t < valid && c < dims.classes; ++c)
        sum += e->start[t * dims.stride + c];
      r.boundary(b, t) = static_cast<T>(sum);
    }
  }
  if (r.duration.empty()) return;
  for (std::int64_t k = 0; k < dims.max_duration; ++k)
    for (std::int64_t c = 0; c < dims.classes; ++c)
      r.duration(b, k, c) = valid == 0 ? T{0} : static_cast<T>(e->duration[k * dims.stride + c]);
}

#define SEGFUSE_INSTANTIATE(T)                                                                  \
  template void check_posteriors(const Posteriors<T>&, const Dims&);                            \
  template void store_posteriors(const Posteriors<T>&, const Dims&, std::int64_t, std::int64_t, \
                                 const RowExpectations*);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
