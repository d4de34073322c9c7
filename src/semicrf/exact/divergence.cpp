// Cross-entropy and divergence of two models: expected counts under one, scores of the other.

#include <fmt/core.h>

#include <algorithm>

#include "segfuse/error.h"
#include "semicrf/exact/inference.h"
#include "semicrf/model/posteriors.h"

namespace segfuse::semicrf {
namespace {

/// One row under both models; p has its lattice.
struct Pair {
  const LatticeInput& p;
  const LatticeInput& q;
  const Lattice& lattice;
  std::int64_t stride = p.model.dims.stride;
  std::int64_t classes = p.model.dims.classes;
};

bool forbids(const double* p, const double* q, std::int64_t n) {
  if (q == nullptr) return false;
  for (std::int64_t i = 0; i < n; ++i)
    if (q[i] == kNegInf && (p == nullptr || p[i] > kNegInf)) return true;
  return false;
}

/// Whether q forbids any single score that p does not: if not, q allows all that p does.
bool may_forbid(const Pair& x) {
  const Model& p = x.p.model;
  const Model& q = x.q.model;
  const std::int64_t frames = x.p.row.length * x.stride;
  return forbids(p.transition.data(), q.transition.data(), p.transition.size()) ||
         forbids(p.duration.data(), q.duration.data(), p.duration.size()) ||
         forbids(p.initial.data(), q.initial.data(), x.stride) ||
         forbids(p.final.data(), q.final.data(), x.stride) ||
         forbids(x.p.row.emission, x.q.row.emission, frames) ||
         forbids(x.p.row.start, x.q.row.start, frames) || forbids(x.p.row.end, x.q.row.end, frames);
}

/// Whether q forbids some way into segment (s, k, c) that p allows.
bool forbids_entry(const Pair& x, std::int64_t s, std::int64_t k, std::int64_t c) {
  if (x.q.row.start != nullptr && x.q.row.start[s * x.stride + c] == kNegInf) return true;
  if (s == 0) return x.q.model.initial[c] == kNegInf;
  const double* p = x.p.model.transition_slice(k - 1) + c;
  const double* q = x.q.model.transition_slice(k - 1) + c;
  for (std::int64_t from = 0; from < x.classes; ++from) {
    const std::int64_t i = from * x.stride;
    if (x.lattice.value[s * x.stride + from] > kNegInf && p[i] > kNegInf && q[i] == kNegInf)
      return true;
  }
  return false;
}

/// Whether q forbids a segmentation that p allows, for segments of label c from s on. Sums of
/// finite logarithms are finite, so what p allows is what its lattice gives a finite value.
bool forbids_from(const Pair& x, std::int64_t s, std::int64_t c) {
  bool content = false;
  for (std::int64_t t = s; t < x.lattice.last_end[static_cast<std::size_t>(s)]; ++t) {
    const std::int64_t i = t * x.stride + c;
    const std::int64_t k = t + 1 - s;
    if (x.p.row.emission[i] == kNegInf) return false;
    content |= x.q.row.emission[i] == kNegInf;
    const std::int64_t duration = (k - 1) * x.stride + c;
    if (x.p.model.duration[duration] == kNegInf || x.lattice.sink[i + x.stride] == kNegInf ||
        lattice_enter(x.p, x.lattice, s, k, c) == kNegInf)
      continue;
    if (content || x.q.model.duration[duration] == kNegInf || forbids_entry(x, s, k, c) ||
        (x.q.row.end != nullptr && x.q.row.end[i] == kNegInf) ||
        (t + 1 == x.p.row.length && x.q.model.final[c] == kNegInf))
      return true;
  }
  return false;
}

bool forbids_some(const Pair& x) {
  if (!may_forbid(x)) return false;
  for (std::int64_t s = 0; s < x.p.row.length; ++s)
    for (std::int64_t c = 0; c < x.classes; ++c)
      if (forbids_from(x, s, c)) return true;
  return false;
}

template <class T>
void check_same(const Potentials<T>& p, const Potentials<T>& q, const Dims& a, const Dims& b) {
  if (a.batch != b.batch || a.frames != b.frames || a.classes != b.classes ||
      a.max_duration != b.max_duration || a.by_duration != b.by_duration)
    throw UsageError(fmt::format(
        "semicrf: the two models differ in shape: B, T, K, C are {}, {}, {}, {} and {}, {}, {}, "
        "{}{}",
        a.batch, a.frames, a.max_duration, a.classes, b.batch, b.frames, b.max_duration, b.classes,
        a.by_duration == b.by_duration ? "" : ", and one has transitions by duration"));
  for (std::int64_t i = 0; i < a.batch; ++i) {
    if (row_length(p.lengths, a, i) != row_length(q.lengths, b, i))
      throw UsageError(
          fmt::format("semicrf: batch {} has {} frames in one model and {} in the other", i,
                      row_length(p.lengths, a, i), row_length(q.lengths, b, i)));
  }
}

/// Calls store(b, cross-entropy, entropy of p) for every row; both 0 where p has no path.
template <class T, class Rows, class Store>
void for_divergences(const Potentials<T>& p, const Potentials<T>& q, const Dims& dims,
                     const Rows& for_rows, const View<RowStatus, 1>& status, const Store& store) {
  ScopedModel model_p;
  ScopedModel model_q;
  load_scoped(p, {}, dims, model_p);
  load_scoped(q, {}, dims, model_q);
  for_rows([&](std::int64_t b, LatticeWorkspace& w) {
    load_scoped_row(p, {}, dims, b, w.scoped);
    load_scoped_row(q, {}, dims, b, w.other);
    const double z_p = forward_of(model_p, w.scoped, w.lattice);
    set_element(status, b, z_p == kNegInf ? RowStatus::kNoPath : RowStatus::kOk);
    if (z_p == kNegInf || w.scoped.row.length == 0) return store(b, 0.0, 0.0);
    const RowExpectations& e = counts_of(model_p, w.scoped, {true, true, true}, w);
    const double z_q = forward_of(model_q, w.other, w.second);
    const LatticeInput input_p = lattice_of(model_p, w.scoped);
    const LatticeInput input_q = lattice_of(model_q, w.other);
    const double entropy = z_p - expected_score(model_p.model, w.scoped.row, e);
    if (z_q == kNegInf || forbids_some({input_p, input_q, w.lattice}))
      return store(b, -kNegInf, entropy);
    store(b, z_q - expected_score(model_q.model, w.other.row, e), entropy);
  });
}

}  // namespace

template <class T>
void Inference::cross_entropy(const Potentials<T>& p, const Potentials<T>& q,
                              const View<double, 1>& result, const View<RowStatus, 1>& status) {
  const Dims dims = check_potentials(p);
  check_same(p, q, dims, check_potentials(q));
  check_vector("the cross-entropy", false, result.extent(0), dims.batch);
  check_vector("status", status.empty(), status.extent(0), dims.batch);
  for_divergences(
      p, q, dims, [&](const auto& body) { state_->for_rows(0, dims.batch, body); }, status,
      [&](std::int64_t b, double cross, double) { result(b) = std::max(0.0, cross); });
}

template <class T>
void Inference::kl(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& result,
                   const View<RowStatus, 1>& status) {
  const Dims dims = check_potentials(p);
  check_same(p, q, dims, check_potentials(q));
  check_vector("the divergence", false, result.extent(0), dims.batch);
  check_vector("status", status.empty(), status.extent(0), dims.batch);
  for_divergences(
      p, q, dims, [&](const auto& body) { state_->for_rows(0, dims.batch, body); }, status,
      [&](std::int64_t b, double cross, double entropy) {
        result(b) = std::max(0.0, cross - entropy);
      });
}

#define SEGFUSE_INSTANTIATE(T)                                                                    \
  template void Inference::cross_entropy(const Potentials<T>&, const Potentials<T>&,              \
                                         const View<double, 1>&, const View<RowStatus, 1>&);      \
  template void Inference::kl(const Potentials<T>&, const Potentials<T>&, const View<double, 1>&, \
                              const View<RowStatus, 1>&);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
