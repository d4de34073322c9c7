#include "semicrf/exact/lattice_tangent.h"

#include <algorithm>
#include <cmath>

#include "base/sizes.h"
#include "segfuse/error.h"
#include "semicrf/exact/lattice_kernels.h"

namespace segfuse::semicrf {
namespace {

/// Between boundaries that differ by as much as a mask the digits of the derivatives would be lost.
double near(double shift) {
  constexpr double kFar = 1e6;
  if (shift > kFar)
    throw DataError(
        "semicrf: derivatives along a direction are not given where a finite score forbids all "
        "segments at a boundary; forbid with -inf, or with a score above -1e6");
  return shift;
}

/// a += b over a vector of classes.
void add_to(double* a, const double* b, std::int64_t stride) {
  for (std::int64_t c = 0; c < stride; ++c) a[c] += b[c];
}

double largest_in(const double* values, std::int64_t n) {
  double largest = 0.0;
  for (std::int64_t i = 0; i < n; ++i) largest = std::max(largest, std::fabs(values[i]));
  return largest;
}

/// The two passes over one row. The lattice's values are read, its sums are formed again.
struct TangentPass {
  const LatticeInput& in;
  const Lattice& lattice;
  const LatticeDirection& to;
  LatticeTangent& out;
  std::int64_t stride = in.model.dims.stride;
  std::int64_t classes = in.model.dims.classes;
  std::int64_t longest = in.model.dims.max_duration;
  std::int64_t length = in.row.length;

  void prepare() const;
  double unit() const;
  void forward() const;
  void backward(RowExpectations& e, double* tail_count) const;
  void enter(std::int64_t s, std::int64_t k) const;
  void link(const double* values, const double* dvalues, const double* matrix,
            const double* dmatrix, double* result, double* dresult) const;
  void arrive(std::int64_t t) const;
  void arrive_open(std::int64_t t, std::int64_t n) const;
  void leave(std::int64_t s, std::int64_t n) const;
  void link_back(std::int64_t s, std::int64_t n) const;
  void finish_boundary(std::int64_t s) const;
  void count(std::int64_t s, std::int64_t n, RowExpectations& e) const;
  void count_by_duration(std::int64_t s, std::int64_t n, RowExpectations& e) const;
  void count_transitions(std::int64_t s, std::int64_t slice, const double* term,
                         const double* dterm, RowExpectations& e) const;
  void count_ends(RowExpectations& e) const;
  void count_labels(RowExpectations& e) const;
  void count_tail(double* tail_count) const;

  /// The two parts of a derivative of exp(value at s + rest at t - log_partition).
  double scalar(std::int64_t s, std::int64_t t) const {
    return lattice.base[at(s)] + lattice.rest_base[at(t)] - lattice.log_partition;
  }
  double dscalar(std::int64_t s, std::int64_t t) const {
    return out.base[at(s)] + out.rest_base[at(t)] - out.log_partition;
  }
  /// Takes the tangent of the most probable class off the tangents, to whole units; what it took.
  double rebase(const double* values, std::initializer_list<double*> tangents) const {
    const double* best = std::max_element(values, values + classes);
    if (*best == kNegInf) return 0.0;
    const double shift = std::nearbyint((*tangents.begin())[best - values] / out.unit) * out.unit;
    for (double* v : tangents)
      for (std::int64_t c = 0; v != nullptr && c < classes; ++c) v[c] -= shift;
    return shift;
  }
  const double* start(std::int64_t s) const {
    return in.row.start == nullptr ? nullptr : in.row.start + s * stride;
  }
  const double* dstart(std::int64_t s) const { return to.row.start + s * stride; }
  double* dopen(std::int64_t t) const {
    return in.tail == nullptr ? nullptr : out.open.data() + t * stride;
  }
  double* dopen_rest(std::int64_t t) const {
    return in.tail == nullptr ? nullptr : out.open_rest.data() + t * stride;
  }
  /// Rows of segments of growing duration from first_k on, values and tangents.
  void extend(const double* beyond, const double* dbeyond, std::int64_t beyond_step,
              std::int64_t frame, std::int64_t frame_step, std::int64_t first_k, std::int64_t n,
              double* content, double* dcontent) const {
    const std::int64_t first = first_k * stride;
    extend_rows({beyond, beyond_step, in.row.emission + frame * stride, frame_step,
                 out.shifts.data() + first_k, in.model.duration.data() + first},
                n, stride, content, out.terms.data() + first);
    extend_rows({dbeyond, beyond_step, to.row.emission + frame * stride, frame_step,
                 out.dshifts.data() + first_k, to.model.duration.data() + first},
                n, stride, dcontent, out.dterms.data() + first);
  }
};

/// A power of two not below the direction's largest part, so that a base is few of them.
double TangentPass::unit() const {
  double largest = 0.0;
  for (const AlignedDoubles* b :
       {&to.model.transition, &to.model.duration, &to.model.initial, &to.model.final})
    largest = std::max(largest, largest_in(b->data(), b->size()));
  for (const double* frames : {to.row.emission, to.row.start, to.row.end})
    largest = std::max(largest, largest_in(frames, length * stride));
  if (to.tail != nullptr) largest = std::max(largest, largest_in(to.tail, stride));
  if (!(largest > 0.0) || !std::isfinite(largest)) return 1.0;
  return std::ldexp(1.0, std::min(std::ilogb(largest) + 1, 1000));
}

void TangentPass::prepare() const {
  const std::int64_t values = (length + 1) * stride;
  for (AlignedDoubles* b : {&out.value, &out.rest, &out.sink}) b->assign(values, 0.0);
  out.source.assign(length * stride, 0.0);
  if (in.tail != nullptr)
    for (AlignedDoubles* b : {&out.open, &out.open_rest}) b->assign(values, 0.0);
  for (std::vector<double>* b : {&out.base, &out.rest_base}) b->assign(at(length) + 1, 0.0);
  out.unit = unit();
  for (AlignedDoubles* b : {&out.terms, &out.dterms}) b->resize((longest + 1) * stride);
  for (AlignedDoubles* b : {&out.pairs, &out.dpairs})
    b->resize(std::max<std::int64_t>(classes, 2) * stride);
  for (AlignedDoubles* b : {&out.entered, &out.dentered}) b->resize(longest * stride);
  for (AlignedDoubles* b : {&out.inner, &out.dinner}) b->resize(stride);
  out.content.resize(2 * stride);
  for (AlignedDoubles* b : {&out.shifts, &out.dshifts}) b->resize(longest);
}

/// The product of a vector with a matrix, both in the log domain, and its tangent.
void TangentPass::link(const double* values, const double* dvalues, const double* matrix,
                       const double* dmatrix, double* result, double* dresult) const {
  add_to_rows(values, matrix, classes, stride, out.pairs.data());
  add_to_rows(dvalues, dmatrix, classes, stride, out.dpairs.data());
  if (result != nullptr) log_sum_rows(out.pairs.data(), classes, stride, result);
  log_sum_tangents(out.pairs.data(), out.dpairs.data(), classes, stride, dresult);
}

/// Row k - 1 of `entered`: prefixes that a segment of k frames at s may follow, with its start
/// score. Where transitions do not depend on durations the value is the lattice's.
void TangentPass::enter(std::int64_t s, std::int64_t k) const {
  const std::int64_t slice = in.model.dims.by_duration ? k - 1 : 0;
  double* result = out.entered.data() + slice * stride;
  double* dresult = out.dentered.data() + slice * stride;
  if (s == 0) {
    std::copy_n(in.model.initial.data(), stride, result);
    std::copy_n(to.model.initial.data(), stride, dresult);
  } else {
    link(lattice.value.data() + s * stride, out.value.data() + s * stride,
         in.model.transition_slice(slice), to.model.transition_slice(slice), result, dresult);
  }
  if (start(s) != nullptr) add_to(result, start(s), stride);
  add_to(dresult, dstart(s), stride);
}

/// open[t], relative to base[t-1], and the row of the segments that go on.
void TangentPass::arrive_open(std::int64_t t, std::int64_t n) const {
  double* now = out.terms.data() + n * stride;
  double* dnow = out.dterms.data() + n * stride;
  std::fill_n(now, stride, kNegInf);
  std::fill_n(dnow, stride, 0.0);
  const std::int64_t frame = (t - 1) * stride;
  for (std::int64_t c = 0; c < classes && !in.is_forced(t - 1); ++c) {
    now[c] = lattice.open[frame + c] + in.tail[c] + in.row.emission[frame + c];
    dnow[c] = out.open[frame + c] + to.tail[c] + to.row.emission[frame + c];
  }
  std::copy_n(dnow, stride, dopen(t));
  if (n < longest) return;
  const double* last = out.terms.data() + (longest - 1) * stride;
  const double* dlast = out.dterms.data() + (longest - 1) * stride;
  log_sum_tangents(last, dlast, 2, stride, dopen(t));  // `now` is the row after it
}

/// value[t] from segments that end there.
void TangentPass::arrive(std::int64_t t) const {
  const std::int64_t n = t - lattice.first_start[at(t)];
  for (std::int64_t k = 1; k <= n; ++k) {
    out.shifts[k - 1] = near(lattice.base[at(t - k)] - lattice.base[at(t - 1)]);
    out.dshifts[k - 1] = out.base[at(t - k)] - out.base[at(t - 1)];
  }
  const bool by_duration = in.model.dims.by_duration;
  for (std::int64_t k = 1; k <= n && by_duration; ++k) enter(t - k, k);
  const std::int64_t source = (t - 1) * stride;
  std::fill_n(out.content.data(), 2 * stride, 0.0);
  extend(by_duration ? out.entered.data() : lattice.source.data() + source,
         by_duration ? out.dentered.data() : out.source.data() + source,
         by_duration ? stride : -stride, t - 1, -stride, 0, n, out.content.data(),
         out.content.data() + stride);
  if (in.tail != nullptr) arrive_open(t, n);
  double* dvalue = out.value.data() + t * stride;
  log_sum_tangents(out.terms.data(), out.dterms.data(), in.tail == nullptr ? n : n + 1, stride,
                   dvalue);
  add_to(dvalue, to.row.end + (t - 1) * stride, stride);
  out.base[at(t)] =
      out.base[at(t - 1)] + rebase(lattice.value.data() + t * stride, {dvalue, dopen(t)});
}

void TangentPass::forward() const {
  for (std::int64_t t = 0;; ++t) {
    if (t > 0) arrive(t);
    if (t == length) break;
    if (in.model.dims.by_duration) continue;
    enter(t, 1);
    std::copy_n(out.dentered.data(), stride, out.source.data() + t * stride);
  }
  double* last = out.entered.data();
  double* dlast = out.dentered.data();
  std::copy_n(lattice.value.data() + length * stride, stride, last);
  std::copy_n(out.value.data() + length * stride, stride, dlast);
  add_to(last, in.model.final.data(), stride);
  add_to(dlast, to.model.final.data(), stride);
  double sum = 0.0;
  double along = 0.0;
  const double most = *std::max_element(last, last + classes);
  for (std::int64_t c = 0; c < classes; ++c) {
    if (last[c] == kNegInf) continue;
    const double weight = std::exp(last[c] - most);
    sum += weight;
    along += weight * dlast[c];
  }
  out.log_partition = along / sum + out.base[at(length)];
}

/// Rows of `terms` for the segments that start at s, relative to rest_base[s+1], and `inner`, all
/// of them.
void TangentPass::leave(std::int64_t s, std::int64_t n) const {
  for (std::int64_t k = 1; k <= n; ++k) {
    out.shifts[k - 1] = near(lattice.rest_base[at(s + k)] - lattice.rest_base[at(s + 1)]);
    out.dshifts[k - 1] = out.rest_base[at(s + k)] - out.rest_base[at(s + 1)];
  }
  double* content = out.content.data();
  std::fill_n(content, 2 * stride, 0.0);
  const std::int64_t closed = in.tail == nullptr ? n : std::min(n, longest - 1);
  const std::int64_t next = (s + 1) * stride;
  extend(lattice.sink.data() + next, out.sink.data() + next, stride, s, stride, 0, closed, content,
         content + stride);
  if (closed < n)
    extend(lattice.open_rest.data() + (s + longest) * stride, dopen_rest(s + longest), stride,
           s + longest - 1, stride, longest - 1, 1, content, content + stride);
  log_sum_rows(out.terms.data(), n, stride, out.inner.data());
  log_sum_tangents(out.terms.data(), out.dterms.data(), n, stride, out.dinner.data());
}

/// rest[s] from all segments that start at s, relative to rest_base[s+1].
void TangentPass::link_back(std::int64_t s, std::int64_t n) const {
  const bool by_duration = in.model.dims.by_duration;
  const std::int64_t rows = by_duration ? n : 1;
  double* leaving = out.content.data();
  double* dleaving = leaving + stride;
  double* drest = out.rest.data() + s * stride;
  const std::int64_t slice = classes * stride;
  for (std::int64_t k = 0; k < rows; ++k) {
    std::copy_n(by_duration ? out.terms.data() + k * stride : out.inner.data(), stride, leaving);
    std::copy_n(by_duration ? out.dterms.data() + k * stride : out.dinner.data(), stride, dleaving);
    if (start(s) != nullptr) add_to(leaving, start(s), stride);
    add_to(dleaving, dstart(s), stride);
    double* dresult = by_duration ? out.dentered.data() + k * stride : drest;
    link(leaving, dleaving, lattice.transposed.data() + k * slice,
         out.transposed.data() + k * slice, by_duration ? out.entered.data() + k * stride : nullptr,
         dresult);
  }
  if (by_duration) log_sum_tangents(out.entered.data(), out.dentered.data(), n, stride, drest);
}

/// sink[s] and open_rest[s] from rest[s], relative to rest_base[s+1] (of the lattice:
/// rest_base[s]).
void TangentPass::finish_boundary(std::int64_t s) const {
  double* dsink = out.sink.data() + s * stride;
  std::copy_n(out.rest.data() + s * stride, stride, dsink);
  add_to(dsink, to.row.end + (s - 1) * stride, stride);
  if (in.tail == nullptr) return;
  std::copy_n(dsink, stride, dopen_rest(s));
  if (s == length || in.is_forced(s)) return;
  const double shift = lattice.rest_base[at(s + 1)] - lattice.rest_base[at(s)];
  double* rows = out.pairs.data();
  double* drows = out.dpairs.data();
  std::copy_n(lattice.sink.data() + s * stride, stride, rows);
  std::copy_n(dsink, stride, drows);
  std::fill_n(rows + stride, stride, kNegInf);
  std::fill_n(drows + stride, stride, 0.0);
  const std::int64_t later = (s + 1) * stride;
  for (std::int64_t c = 0; c < classes; ++c) {
    const std::int64_t frame = s * stride + c;
    rows[stride + c] = lattice.open_rest[later + c] + shift + (in.tail[c] + in.row.emission[frame]);
    drows[stride + c] = out.open_rest[later + c] + (to.tail[c] + to.row.emission[frame]);
  }
  log_sum_tangents(rows, drows, 2, stride, dopen_rest(s));
}

void TangentPass::backward(RowExpectations& e, double* tail_count) const {
  const Dims& dims = in.model.dims;
  out.transposed.assign(dims.slices() * classes * stride, 0.0);
  for (std::int64_t k = 0; k < dims.slices(); ++k)
    for (std::int64_t a = 0; a < classes; ++a)
      for (std::int64_t b = 0; b < classes; ++b)
        out.transposed[(k * classes + b) * stride + a] =
            to.model.transition_slice(k)[a * stride + b];
  std::copy_n(to.model.final.data(), stride, out.rest.data() + length * stride);
  finish_boundary(length);
  for (std::int64_t s = length - 1; s >= 0; --s) {
    const std::int64_t n = lattice.last_end[at(s)] - s;
    leave(s, n);
    dims.by_duration ? count_by_duration(s, n, e) : count(s, n, e);
    if (s == 0) break;
    link_back(s, n);
    finish_boundary(s);
    const std::int64_t here = s * stride;
    out.rest_base[at(s)] = out.rest_base[at(s + 1)] +
                           rebase(lattice.rest.data() + here,
                                  {out.rest.data() + here, out.sink.data() + here, dopen_rest(s)});
  }
  count_ends(e);
  count_labels(e);
  if (in.tail != nullptr) count_tail(tail_count);
}

/// Segments at s > 0 whose way on from their start is `term` (relative to rest_base[s+1]).
void TangentPass::count_transitions(std::int64_t s, std::int64_t slice, const double* term,
                                    const double* dterm, RowExpectations& e) const {
  double* offset = out.content.data();
  double* doffset = offset + stride;
  std::copy_n(term, stride, offset);
  std::copy_n(dterm, stride, doffset);
  if (start(s) != nullptr) add_to(offset, start(s), stride);
  add_to(doffset, dstart(s), stride);
  add_to_rows(lattice.value.data() + s * stride, in.model.transition_slice(slice), classes, stride,
              out.pairs.data());
  add_to_rows(out.value.data() + s * stride, to.model.transition_slice(slice), classes, stride,
              out.dpairs.data());
  add_exp_tangents(
      {out.pairs.data(), out.dpairs.data(), offset, doffset, scalar(s, s + 1), dscalar(s, s + 1)},
      classes, stride, e.transition.data() + slice * classes * stride);
}

/// Counts of the segments that start at s, from `terms` and `inner`.
void TangentPass::count(std::int64_t s, std::int64_t n, RowExpectations& e) const {
  const double* source = lattice.source.data() + s * stride;
  const double* dsource = out.source.data() + s * stride;
  ExpTangents x{out.inner.data(), out.dinner.data(), source,
                dsource,          scalar(s, s + 1),  dscalar(s, s + 1)};
  add_exp_tangents(x, 1, stride, e.start.data() + s * stride);
  x.rows = out.terms.data(), x.tangents = out.dterms.data();
  if (e.want_duration) add_exp_tangents(x, n, stride, e.duration.data());
  if (e.want_transition && s > 0) count_transitions(s, 0, out.inner.data(), out.dinner.data(), e);
}

void TangentPass::count_by_duration(std::int64_t s, std::int64_t n, RowExpectations& e) const {
  for (std::int64_t k = 0; k < n; ++k) {
    enter(s, k + 1);
    const double* term = out.terms.data() + k * stride;
    const double* dterm = out.dterms.data() + k * stride;
    const ExpTangents x{term,
                        dterm,
                        out.entered.data() + k * stride,
                        out.dentered.data() + k * stride,
                        scalar(s, s + 1),
                        dscalar(s, s + 1)};
    add_exp_tangents(x, 1, stride, e.start.data() + s * stride);
    if (e.want_duration) add_exp_tangents(x, 1, stride, e.duration.data() + k * stride);
    if (e.want_transition && s > 0) count_transitions(s, k, term, dterm, e);
  }
}

void TangentPass::count_ends(RowExpectations& e) const {
  for (std::int64_t t = 1; t <= length; ++t) {
    const std::int64_t here = t * stride;
    add_exp_tangents(
        {lattice.value.data() + here, out.value.data() + here, lattice.rest.data() + here,
         out.rest.data() + here, scalar(t, t), dscalar(t, t)},
        1, stride, e.end.data() + here - stride);
  }
}

/// Running sums of starts less ends; a forbidden frame is exactly 0.
void TangentPass::count_labels(RowExpectations& e) const {
  double* running = out.content.data();
  std::fill_n(running, stride, 0.0);
  for (std::int64_t t = 0; t < length; ++t) {
    for (std::int64_t c = 0; c < stride; ++c) {
      const std::int64_t i = t * stride + c;
      running[c] += e.start[i] - (t > 0 ? e.end[i - stride] : 0.0);
      e.label[i] = in.row.emission[i] == kNegInf ? 0.0 : running[c];
    }
  }
}

void TangentPass::count_tail(double* tail_count) const {
  double* offset = out.content.data();
  double* doffset = offset + stride;
  for (std::int64_t t = 1; t < length; ++t) {
    if (in.is_forced(t)) continue;
    std::fill_n(offset, stride, kNegInf);
    std::fill_n(doffset, stride, 0.0);
    const std::int64_t here = t * stride;
    for (std::int64_t c = 0; c < classes; ++c) {
      offset[c] = lattice.open[here + c] + in.tail[c] + in.row.emission[here + c];
      doffset[c] = out.open[here + c] + to.tail[c] + to.row.emission[here + c];
    }
    const std::int64_t next = here + stride;
    add_exp_tangents({lattice.open_rest.data() + next, out.open_rest.data() + next, offset, doffset,
                      scalar(t, t + 1), dscalar(t, t + 1)},
                     1, stride, tail_count);
  }
}

}  // namespace

double lattice_forward_tangent(const LatticeInput& input, const Lattice& lattice,
                               const LatticeDirection& direction, LatticeTangent& tangent) {
  const TangentPass pass{input, lattice, direction, tangent};
  pass.prepare();
  pass.forward();
  return tangent.log_partition;
}

void lattice_backward_tangent(const LatticeInput& input, const Lattice& lattice,
                              const LatticeDirection& direction, LatticeTangent& tangent,
                              RowExpectations& counts, double* tail_count) {
  clear_counts(input, counts, tail_count);
  TangentPass{input, lattice, direction, tangent}.backward(counts, tail_count);
}

}  // namespace segfuse::semicrf
