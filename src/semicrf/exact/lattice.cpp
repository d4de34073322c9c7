#include "semicrf/exact/lattice.h"

#include <algorithm>
#include <cmath>

#include "base/sizes.h"
#include "segfuse/error.h"
#include "semicrf/exact/lattice_kernels.h"

namespace segfuse::semicrf {
namespace {

/// The sum of a few scores.
double sum_of(const std::vector<double>& terms, Sum kind) {
  const double max = *std::max_element(terms.begin(), terms.end());
  if (kind == Sum::kMax || max == kNegInf) return max;
  double sum = 0.0;
  for (const double term : terms) sum += std::exp(term - max);
  return max + std::log(sum);
}

/// The two passes over one row.
struct Pass {
  const LatticeInput& in;
  Lattice& out;
  std::int64_t stride = in.model.dims.stride;
  std::int64_t classes = in.model.dims.classes;
  std::int64_t longest = in.model.dims.max_duration;
  std::int64_t length = in.row.length;

  void reduce(const double* rows, std::int64_t n, double* result) const {
    out.sum == Sum::kLog ? log_sum_rows(rows, n, stride, result)
                         : max_rows(rows, n, stride, result);
  }
  /// The sum of two vectors into the first.
  void join(double* into, const double* other) const {
    double* rows = out.pairs.data();
    std::copy_n(into, stride, rows);
    std::copy_n(other, stride, rows + stride);
    reduce(rows, 2, into);
  }
  /// result[c] = sum over i of values[i] and slice k of the matrix, [i, c].
  void multiply(const double* values, const Lattice::Matrix& matrix, std::int64_t k,
                double* result) const {
    const double* log = matrix.log + k * classes * stride;
    if (out.sum == Sum::kMax) {
      add_to_rows(values, log, classes, stride, out.pairs.data());
      return reduce(out.pairs.data(), classes, result);
    }
    const double max = *std::max_element(values, values + classes);
    if (max == kNegInf) {
      std::fill_n(result, stride, kNegInf);
      return;
    }
    exp_vector(values, -max, stride, out.weights.data());
    if (!log_product(out.weights.data(), matrix.linear.data() + k * classes * stride,
                     matrix.column_max.data() + k * stride, max, classes, stride, result))
      return;
    std::vector<double> terms(at(classes));
    for (std::int64_t c = 0; c < classes; ++c) {
      if (!std::isnan(result[c])) continue;
      for (std::int64_t i = 0; i < classes; ++i) terms[at(i)] = values[i] + log[i * stride + c];
      result[c] = sum_of(terms, Sum::kLog);
    }
  }
  void make_linear(const double* log, Lattice::Matrix& matrix) const {
    const std::int64_t slices = in.model.dims.slices();
    matrix.log = log;
    if (out.sum == Sum::kMax) return;
    matrix.linear.resize(slices * classes * stride);
    matrix.column_max.assign(slices * stride, kNegInf);
    for (std::int64_t k = 0; k < slices; ++k) {
      double* max = matrix.column_max.data() + k * stride;
      for (std::int64_t i = k * classes; i < (k + 1) * classes; ++i)
        for (std::int64_t c = 0; c < stride; ++c) max[c] = std::max(max[c], log[i * stride + c]);
      for (std::int64_t i = k * classes; i < (k + 1) * classes; ++i)
        for (std::int64_t c = 0; c < stride; ++c)
          matrix.linear[i * stride + c] =
              max[c] == kNegInf ? 0.0 : std::exp(log[i * stride + c] - max[c]);
    }
  }
  void multiply_timed(const double* values, const double* log, double* result) const {
    out.timed.log = log;
    if (out.sum == Sum::kLog)
      exp_columns(log, classes, stride, out.timed.linear.data(), out.timed.column_max.data());
    multiply(values, out.timed, 0, result);
  }
  /// Transitions at boundary s into segments of k frames, [from, to], with the scores of s.
  const double* timed_log(std::int64_t s, std::int64_t k) const {
    double* log = out.timed_log.data();
    std::copy_n(in.model.transition_slice(slice(k)), classes * stride, log);
    in.row.transitions.add(s, stride, log);
    return log;
  }
  /// result[to] = sum over from of values[from] and such a transition.
  void follow(std::int64_t s, std::int64_t k, const double* values, double* result) const {
    if (!in.row.transitions.present()) return multiply(values, out.transition, slice(k), result);
    multiply_timed(values, timed_log(s, k), result);
  }
  /// result[from] = sum over to of values[to] and such a transition.
  void precede(std::int64_t s, std::int64_t k, const double* values, double* result) const {
    if (!in.row.transitions.present()) return multiply(values, out.backwards, slice(k), result);
    double* log = out.timed_log.data();
    std::copy_n(out.transposed.data() + slice(k) * classes * stride, classes * stride, log);
    in.row.transitions.add_transposed(s, stride, log);
    multiply_timed(values, log, result);
  }
  std::int64_t slice(std::int64_t k) const { return in.model.dims.by_duration ? k - 1 : 0; }
  /// One row for each of n durations: what stands beyond the segment (`step` doubles apart), the
  /// frames that the segment gains, going away from the boundary, and its duration score.
  void extend(const double* beyond, std::int64_t beyond_step, const double* frame,
              std::int64_t frame_step, std::int64_t first_k, std::int64_t n) const {
    extend_rows({beyond, beyond_step, frame, frame_step, out.shifts.data() + first_k,
                 in.model.duration.data() + first_k * stride},
                n, stride, out.content.data(), out.terms.data() + first_k * stride);
  }
  /// Takes a whole number off the given vectors, and returns it.
  double rebase(std::initializer_list<double*> vectors) const {
    double max = kNegInf;
    for (const double* v : vectors)
      if (v != nullptr) max = std::max(max, *std::max_element(v, v + classes));
    if (max == kNegInf) return 0.0;
    const double shift = std::nearbyint(max);
    for (double* v : vectors)
      for (std::int64_t c = 0; v != nullptr && c < classes; ++c) v[c] -= shift;
    return shift;
  }
  /// Whether terms would lose digits if they were taken relative to `to`: scores as large as masks
  /// lie between it and their own bases.
  bool is_far(std::int64_t n, double to) const {
    constexpr double kFar = 1000.0;
    return std::any_of(out.shifts.data(), out.shifts.data() + n,
                       [&](double base) { return base - to > kFar; });
  }
  /// Rows of `terms`, relative to the bases in `shifts`, become relative to one, which is returned:
  /// a whole number near the largest of them, or near `other`.
  double to_one_base(std::int64_t rows, double other, double otherwise) const {
    double largest = other;
    for (std::int64_t k = 0; k < rows; ++k) {
      const double* row = out.terms.data() + k * stride;
      largest = std::max(largest, out.shifts[k] + *std::max_element(row, row + classes));
    }
    const double base = largest == kNegInf ? otherwise : std::nearbyint(largest);
    for (std::int64_t k = 0; k < rows; ++k)
      for (std::int64_t c = 0; c < stride; ++c) out.terms[k * stride + c] += out.shifts[k] - base;
    return base;
  }
  /// Durations whose segment ends where it likes; the K-th goes through `open` when there is a
  /// tail.
  std::int64_t closed(std::int64_t n) const {
    return in.tail == nullptr ? n : std::min(n, longest - 1);
  }
  double* open(std::int64_t t) const {
    return in.tail == nullptr ? nullptr : out.open.data() + t * stride;
  }
  double* open_rest(std::int64_t t) const {
    return in.tail == nullptr ? nullptr : out.open_rest.data() + t * stride;
  }
  /// Prefixes that a segment of k frames at s may follow, with its start score.
  void enter(std::int64_t s, std::int64_t k, double* result) const {
    if (s == 0)
      std::copy_n(in.model.initial.data(), stride, result);
    else
      follow(s, k, out.value.data() + s * stride, result);
    if (in.row.start == nullptr) return;
    for (std::int64_t c = 0; c < classes; ++c) result[c] += in.row.start[s * stride + c];
  }

  /// source[t].
  void start(std::int64_t t) const {
    if (!in.model.dims.by_duration) enter(t, 1, out.source.data() + t * stride);
  }

  void prepare() const;
  void forward() const;
  void forward_open(std::int64_t t, std::int64_t n) const;
  double going_on(std::int64_t s) const;
  void arrive(std::int64_t t) const;
  void backward(RowExpectations* counts, double* tail_count) const;
  void begin_backward() const;
  void end_row() const;
  void back(std::int64_t s, RowExpectations* counts) const;
  std::int64_t leave(std::int64_t s) const;
  void link_back(std::int64_t s) const;
  void link_back_by_duration(std::int64_t s, std::int64_t n) const;
  void finish_boundary(std::int64_t s) const;
  void count(std::int64_t s, std::int64_t n, RowExpectations& e) const;
  void count_by_duration(std::int64_t s, std::int64_t n, RowExpectations& e) const;
  void count_transitions(std::int64_t s, std::int64_t slice, const double* offset, double scalar,
                         RowExpectations& e) const;
  void count_timed(std::int64_t s, std::int64_t k, const double* offset, double scalar,
                   RowExpectations& e) const;
  bool wants_segments(const RowExpectations& e) const {
    return e.tables != nullptr && e.tables->want_segments;
  }
  bool wants_changes(std::int64_t s, const RowExpectations& e) const {
    return s > 0 && e.tables != nullptr && e.tables->want_transitions;
  }
  void finish_transitions(RowExpectations& e) const;
  void count_ends(RowExpectations& e) const;
  void count_labels(RowExpectations& e) const;
  void count_tail(double* tail_count) const;
};

void Pass::prepare() const {
  const std::int64_t values = (length + 1) * stride;
  out.value.assign(values, kNegInf);
  out.source.assign(length * stride, kNegInf);
  if (in.tail != nullptr) out.open.assign(values, kNegInf);
  out.base.assign(at(length) + 1, 0.0);
  out.terms.resize((longest + 1) * stride);
  out.pairs.resize(std::max<std::int64_t>(classes, 2) * stride);
  out.entered.resize((in.model.dims.by_duration ? longest : 1) * stride);
  out.content.resize(stride);
  out.weights.resize(2 * stride);
  out.shares.resize(stride);
  if (in.row.transitions.present()) {
    out.timed_log.resize(classes * stride);
    out.timed.linear.resize(classes * stride);
    out.timed.column_max.resize(stride);
  }
  make_linear(in.model.transition.data(), out.transition);
  out.shifts.resize(longest + 1);
  out.first_start.assign(at(length) + 1, 0);
  out.last_end.assign(at(length), length);
  std::int64_t last_forced = 0;
  for (std::int64_t t = 1; t <= length; ++t) {
    if (in.is_forced(t - 1)) last_forced = t - 1;
    out.first_start[at(t)] = std::max(last_forced, t - longest);
  }
  std::int64_t next_forced = length;
  for (std::int64_t s = length - 1; s >= 0; --s) {
    out.last_end[at(s)] = std::min(next_forced, s + longest);
    if (in.is_forced(s)) next_forced = s;
  }
}

/// open[t], relative to base[t-1], and a row of `terms` for the segments that go on.
void Pass::forward_open(std::int64_t t, std::int64_t n) const {
  double* now = open(t);
  const double* before = open(t - 1);
  const double* frame = in.row.emission + (t - 1) * stride;
  const bool may_go_on = !in.is_forced(t - 1);
  std::fill_n(now, stride, kNegInf);
  for (std::int64_t c = 0; c < classes && may_go_on; ++c)
    now[c] = before[c] + in.tail[c] + frame[c];
  std::copy_n(now, stride, out.terms.data() + n * stride);
}

/// value[t] from segments that end there.
void Pass::arrive(std::int64_t t) const {
  const std::int64_t n = t - out.first_start[at(t)];
  const std::int64_t rows = in.tail == nullptr ? n : n + 1;
  double base = out.base[at(t - 1)];
  for (std::int64_t k = 1; k <= n; ++k) out.shifts[k - 1] = out.base[at(t - k)];
  const bool far = is_far(n, base);
  for (std::int64_t k = 0; k < n; ++k) out.shifts[k] = far ? 0.0 : out.shifts[k] - base;
  const double* beyond = out.source.data() + (t - 1) * stride;
  std::int64_t step = -stride;
  if (in.model.dims.by_duration) {
    for (std::int64_t k = 1; k <= n; ++k) enter(t - k, k, out.entered.data() + (k - 1) * stride);
    beyond = out.entered.data();
    step = stride;
  }
  std::fill_n(out.content.data(), stride, 0.0);
  extend(beyond, step, in.row.emission + (t - 1) * stride, -stride, 0, n);
  in.row.segments.add_ending(t, n, stride, out.terms.data());
  if (in.tail != nullptr) forward_open(t, n);
  if (far) {
    for (std::int64_t k = 1; k <= n; ++k) out.shifts[k - 1] = out.base[at(t - k)];
    out.shifts[n] = base;
    base = to_one_base(rows, kNegInf, base);
    if (in.tail != nullptr) std::copy_n(out.terms.data() + n * stride, stride, open(t));
  }
  if (in.tail != nullptr && n == longest) join(open(t), out.terms.data() + (longest - 1) * stride);
  double* value = out.value.data() + t * stride;
  reduce(out.terms.data(), rows, value);
  for (std::int64_t c = 0; in.row.end != nullptr && c < classes; ++c)
    value[c] += in.row.end[(t - 1) * stride + c];
  out.base[at(t)] = base + rebase({value, open(t)});
}

void Pass::forward() const {
  for (std::int64_t t = 0;; ++t) {
    if (t > 0) arrive(t);
    if (t == length) break;
    start(t);
  }
  std::vector<double> last(at(classes));
  for (std::int64_t c = 0; c < classes; ++c)
    last[at(c)] = out.value[length * stride + c] + in.model.final[c];
  out.log_partition = sum_of(last, out.sum) + out.base[at(length)];
}

/// The largest of the segments that have more than K frames at s and go on, with their base.
double Pass::going_on(std::int64_t s) const {
  double largest = kNegInf;
  if (in.tail == nullptr || s == 0 || in.is_forced(s)) return largest;
  const double* later = open_rest(s + 1);
  for (std::int64_t c = 0; c < classes; ++c)
    largest = std::max(largest, in.tail[c] + in.row.emission[s * stride + c] + later[c]);
  return largest + out.rest_base[at(s + 1)];
}

/// Rows of `terms` for the segments that start at s, relative to `leaving_base`; their number.
std::int64_t Pass::leave(std::int64_t s) const {
  const std::int64_t n = out.last_end[at(s)] - s;
  const double next = out.rest_base[at(s + 1)];
  out.leaving_base = next;
  for (std::int64_t k = 1; k <= n; ++k) out.shifts[k - 1] = out.rest_base[at(s + k)];
  const bool far = is_far(n, next);
  for (std::int64_t k = 0; k < n; ++k) out.shifts[k] = far ? 0.0 : out.shifts[k] - next;
  std::fill_n(out.content.data(), stride, 0.0);
  const double* frame = in.row.emission + s * stride;
  extend(out.sink.data() + (s + 1) * stride, stride, frame, stride, 0, closed(n));
  if (closed(n) < n)
    extend(open_rest(s + longest), stride, frame + (longest - 1) * stride, stride, longest - 1, 1);
  in.row.segments.add_starting(s, n, stride, out.terms.data());
  if (far) {
    for (std::int64_t k = 1; k <= n; ++k) out.shifts[k - 1] = out.rest_base[at(s + k)];
    out.leaving_base = to_one_base(n, going_on(s), next);
  }
  return n;
}

/// rest[s] from inner[s], all segments that start at s.
void Pass::link_back(std::int64_t s) const {
  double* leaving = out.entered.data();
  std::copy_n(out.inner.data() + s * stride, stride, leaving);
  for (std::int64_t c = 0; in.row.start != nullptr && c < classes; ++c)
    leaving[c] += in.row.start[s * stride + c];
  precede(s, 1, leaving, out.rest.data() + s * stride);
}

void Pass::link_back_by_duration(std::int64_t s, std::int64_t n) const {
  double* leaving = out.content.data();
  for (std::int64_t k = 0; k < n; ++k) {
    std::copy_n(out.terms.data() + k * stride, stride, leaving);
    for (std::int64_t c = 0; in.row.start != nullptr && c < classes; ++c)
      leaving[c] += in.row.start[s * stride + c];
    precede(s, k + 1, leaving, out.entered.data() + k * stride);
  }
  reduce(out.entered.data(), n, out.rest.data() + s * stride);
}

/// sink[s] and open_rest[s] from rest[s].
void Pass::finish_boundary(std::int64_t s) const {
  double* sink = out.sink.data() + s * stride;
  std::copy_n(out.rest.data() + s * stride, stride, sink);
  for (std::int64_t c = 0; in.row.end != nullptr && c < classes; ++c)
    sink[c] += in.row.end[(s - 1) * stride + c];
  if (in.tail == nullptr) return;
  double* open = open_rest(s);
  std::fill_n(open, stride, kNegInf);
  if (s < length && !in.is_forced(s)) {
    const double* later = open_rest(s + 1);
    const double shift = out.rest_base[at(s + 1)] - out.leaving_base;
    for (std::int64_t c = 0; c < classes; ++c)
      open[c] = in.tail[c] + in.row.emission[s * stride + c] + later[c] + shift;
  }
  join(open, sink);
}

void Pass::begin_backward() const {
  const Dims& dims = in.model.dims;
  const std::int64_t values = (length + 1) * stride;
  for (AlignedDoubles* b : {&out.rest, &out.sink}) b->assign(values, kNegInf);
  if (in.tail != nullptr) out.open_rest.assign(values, kNegInf);
  out.inner.assign(length * stride, kNegInf);
  out.rest_base.assign(at(length) + 1, 0.0);
  out.transposed.assign(dims.slices() * classes * stride, kNegInf);
  for (std::int64_t k = 0; k < dims.slices(); ++k)
    for (std::int64_t from = 0; from < classes; ++from)
      for (std::int64_t to = 0; to < classes; ++to)
        out.transposed[(k * classes + to) * stride + from] =
            in.model.transition_slice(k)[from * stride + to];
  make_linear(out.transposed.data(), out.backwards);
}

/// The suffixes from the last boundary.
void Pass::end_row() const {
  std::copy_n(in.model.final.data(), stride, out.rest.data() + length * stride);
  finish_boundary(length);
}

/// Boundary s from those behind it.
void Pass::back(std::int64_t s, RowExpectations* counts) const {
  const bool by_duration = in.model.dims.by_duration;
  const std::int64_t n = leave(s);
  double* inner = out.inner.data() + s * stride;
  const bool shares = counts != nullptr && !by_duration && wants_segments(*counts);
  if (shares)
    log_sum_shares(out.terms.data(), n, stride, inner, out.shares.data());
  else
    reduce(out.terms.data(), n, inner);
  if (counts != nullptr) by_duration ? count_by_duration(s, n, *counts) : count(s, n, *counts);
  if (s > 0) {
    by_duration ? link_back_by_duration(s, n) : link_back(s);
    finish_boundary(s);
  }
  double* rest = s == 0 ? nullptr : out.rest.data() + s * stride;
  double* sink = s == 0 ? nullptr : out.sink.data() + s * stride;
  double* open = s == 0 ? nullptr : open_rest(s);
  out.rest_base[at(s)] = out.leaving_base + rebase({inner, rest, sink, open});
}

void Pass::backward(RowExpectations* counts, double* tail_count) const {
  begin_backward();
  out.largest_transition =
      *std::max_element(out.transposed.data(), out.transposed.data() + out.transposed.size());
  if (out.largest_transition == kNegInf) out.largest_transition = 0.0;
  out.linear_counts.assign(counts != nullptr && counts->want_transition ? out.transposed.size() : 0,
                           0.0);
  end_row();
  for (std::int64_t s = length - 1; s >= 0; --s) back(s, counts);
  if (counts == nullptr) return;
  finish_transitions(*counts);
  count_ends(*counts);
  count_labels(*counts);
  if (in.tail != nullptr && tail_count != nullptr) count_tail(tail_count);
}

/// P(from, to) at boundary s, for a segment whose other log weights are offset[to] + scalar: a
/// product of exponentials, the transition's own still to come, where these are in range.
void Pass::count_transitions(std::int64_t s, std::int64_t slice, const double* offset,
                             double scalar, RowExpectations& e) const {
  constexpr double kSafe = 500.0;
  const double* value = out.value.data() + s * stride;
  const double max = *std::max_element(value, value + classes);
  const double shift = max + scalar + out.largest_transition;
  if (max == kNegInf) return;
  if (in.row.transitions.present()) return count_timed(s, slice + 1, offset, scalar, e);
  const std::int64_t first = slice * classes * stride;
  if (*std::max_element(offset, offset + classes) + shift > kSafe) {
    add_to_rows(value, in.model.transition_slice(slice), classes, stride, out.pairs.data());
    return add_exp_rows(out.pairs.data(), offset, scalar, classes, stride,
                        e.transition.data() + first);
  }
  double* from = out.weights.data();
  double* to = from + stride;
  exp_vector(value, -max, stride, from);
  exp_vector(offset, shift, stride, to);
  add_outer(from, to, classes, stride, out.linear_counts.data() + first);
}

/// The same where the transitions of s are its own: into change_counts too.
void Pass::count_timed(std::int64_t s, std::int64_t k, const double* offset, double scalar,
                       RowExpectations& e) const {
  add_to_rows(out.value.data() + s * stride, timed_log(s, k), classes, stride, out.pairs.data());
  if (wants_changes(s, e))
    add_exp_rows(out.pairs.data(), offset, scalar, classes, stride, out.change_counts.data());
  if (e.want_transition)
    add_exp_rows(out.pairs.data(), offset, scalar, classes, stride,
                 e.transition.data() + slice(k) * classes * stride);
}

/// Completes the counts of transitions.
void Pass::finish_transitions(RowExpectations& e) const {
  const double largest = out.largest_transition;
  for (std::int64_t i = 0; i < out.linear_counts.size(); ++i)
    e.transition[i] += out.linear_counts[i] * std::exp(in.model.transition[i] - largest);
}

/// Counts of the segments that start at s, from inner[s] (relative to leaving_base) and `terms`,
/// which are shares in it, times `shares`, where single segments count.
void Pass::count(std::int64_t s, std::int64_t n, RowExpectations& e) const {
  const double scalar = out.base[at(s)] + out.leaving_base - out.log_partition;
  const double* source = out.source.data() + s * stride;
  const double* inner = out.inner.data() + s * stride;
  add_exp_rows(inner, source, scalar, 1, stride, e.start.data() + s * stride);
  if (wants_segments(e)) {
    for (std::int64_t c = 0; c < stride; ++c)
      out.shares[c] = e.start[s * stride + c] / out.shares[c];
    scale_rows(out.shares.data(), n, stride, out.terms.data());
    for (std::int64_t i = 0; e.want_duration && i < n * stride; ++i) e.duration[i] += out.terms[i];
    e.tables->segments(s, n, out.terms.data());
  } else if (e.want_duration) {
    add_exp_rows(out.terms.data(), source, scalar, n, stride, e.duration.data());
  }
  if (s == 0 || !(e.want_transition || wants_changes(s, e))) return;
  if (wants_changes(s, e)) out.change_counts.assign(classes * stride, 0.0);
  double* offset = out.entered.data();
  std::copy_n(inner, stride, offset);
  for (std::int64_t c = 0; in.row.start != nullptr && c < classes; ++c)
    offset[c] += in.row.start[s * stride + c];
  count_transitions(s, 0, offset, scalar, e);
  if (wants_changes(s, e)) e.tables->transitions(s, out.change_counts.data());
}

void Pass::count_by_duration(std::int64_t s, std::int64_t n, RowExpectations& e) const {
  const double scalar = out.base[at(s)] + out.leaving_base - out.log_partition;
  double* entry = out.content.data();
  if (wants_segments(e)) out.segment_counts.assign(n * stride, 0.0);
  if (wants_changes(s, e)) out.change_counts.assign(classes * stride, 0.0);
  for (std::int64_t k = 0; k < n; ++k) {
    const double* term = out.terms.data() + k * stride;
    enter(s, k + 1, entry);
    add_exp_rows(term, entry, scalar, 1, stride, e.start.data() + s * stride);
    if (e.want_duration)
      add_exp_rows(term, entry, scalar, 1, stride, e.duration.data() + k * stride);
    if (wants_segments(e))
      add_exp_rows(term, entry, scalar, 1, stride, out.segment_counts.data() + k * stride);
    if (s == 0 || !(e.want_transition || wants_changes(s, e))) continue;
    double* offset = out.entered.data();
    std::copy_n(term, stride, offset);
    for (std::int64_t c = 0; in.row.start != nullptr && c < classes; ++c)
      offset[c] += in.row.start[s * stride + c];
    count_transitions(s, k, offset, scalar, e);
  }
  if (wants_segments(e)) e.tables->segments(s, n, out.segment_counts.data());
  if (wants_changes(s, e)) e.tables->transitions(s, out.change_counts.data());
}

void Pass::count_ends(RowExpectations& e) const {
  for (std::int64_t t = 1; t <= length; ++t)
    add_exp_rows(out.value.data() + t * stride, out.rest.data() + t * stride,
                 out.base[at(t)] + out.rest_base[at(t)] - out.log_partition, 1, stride,
                 e.end.data() + (t - 1) * stride);
}

/// Running sums of starts less ends. A forbidden frame is exactly 0, and no rounding is negative.
void Pass::count_labels(RowExpectations& e) const {
  double* running = out.content.data();
  std::fill_n(running, stride, 0.0);
  for (std::int64_t t = 0; t < length; ++t) {
    for (std::int64_t c = 0; c < stride; ++c) {
      const std::int64_t i = t * stride + c;
      running[c] += e.start[i] - (t > 0 ? e.end[i - stride] : 0.0);
      e.label[i] = in.row.emission[i] == kNegInf ? 0.0 : std::max(0.0, running[c]);
    }
  }
}

void Pass::count_tail(double* tail_count) const {
  double* offset = out.entered.data();
  std::fill_n(offset, stride, kNegInf);
  for (std::int64_t t = 1; t < length; ++t) {
    if (in.is_forced(t)) continue;
    for (std::int64_t c = 0; c < classes; ++c)
      offset[c] = open(t)[c] + in.tail[c] + in.row.emission[t * stride + c];
    add_exp_rows(open_rest(t + 1), offset,
                 out.base[at(t)] + out.rest_base[at(t + 1)] - out.log_partition, 1, stride,
                 tail_count);
  }
}

}  // namespace

double lattice_forward(const LatticeInput& input, Sum sum, Lattice& lattice) {
  lattice.sum = sum;
  const Pass pass{input, lattice};
  pass.prepare();
  pass.forward();
  // A base that overflows stays so, and no way leads back through such values.
  return need_finite_sum(std::isfinite(lattice.base.back()) ? lattice.log_partition : -kNegInf);
}

void lattice_begin(const LatticeInput& input, Sum sum, Lattice& lattice) {
  lattice.sum = sum;
  Pass{input, lattice}.prepare();
}

void lattice_leave(const LatticeInput& input, Lattice& lattice, std::int64_t t) {
  Pass{input, lattice}.start(t);
}

void lattice_arrive(const LatticeInput& input, Lattice& lattice, std::int64_t t) {
  Pass{input, lattice}.arrive(t);
}

void lattice_move(const LatticeInput& input, Lattice& lattice, std::int64_t first,
                  std::int64_t last) {
  const std::int64_t stride = input.model.dims.stride;
  for (AlignedDoubles* rows : {&lattice.value, &lattice.source, &lattice.open}) {
    if (rows->size() == 0) continue;
    const double* from = rows->data();
    const std::int64_t end = std::min((last + 1) * stride, rows->size());
    std::copy(from + first * stride, from + end, rows->data());
  }
  std::copy(lattice.base.begin() + first, lattice.base.begin() + last + 1, lattice.base.begin());
}

void lattice_begin_backward(const LatticeInput& input, Lattice& lattice, bool row_ends) {
  const Pass pass{input, lattice};
  pass.begin_backward();
  if (row_ends) pass.end_row();
}

void lattice_back(const LatticeInput& input, Lattice& lattice, std::int64_t s) {
  Pass{input, lattice}.back(s, nullptr);
}

void clear_counts(const LatticeInput& input, RowExpectations& counts, double* tail_count) {
  const Dims& dims = input.model.dims;
  for (AlignedDoubles* frames : {&counts.label, &counts.start, &counts.end})
    frames->assign(input.row.length * dims.stride, 0.0);
  if (counts.want_transition)
    counts.transition.assign(dims.slices() * dims.classes * dims.stride, 0.0);
  if (counts.want_duration) counts.duration.assign(dims.max_duration * dims.stride, 0.0);
  if (tail_count != nullptr) std::fill_n(tail_count, dims.stride, 0.0);
}

void lattice_backward(const LatticeInput& input, Lattice& lattice, RowExpectations* counts,
                      double* tail_count) {
  if (counts != nullptr) clear_counts(input, *counts, tail_count);
  Pass{input, lattice}.backward(counts, tail_count);
}

double lattice_enter(const LatticeInput& x, const Lattice& lattice, std::int64_t s, std::int64_t k,
                     std::int64_t c) {
  const Dims& dims = x.model.dims;
  if (!dims.by_duration) return lattice.source[s * dims.stride + c];
  const double start = x.row.start == nullptr ? 0.0 : x.row.start[s * dims.stride + c];
  if (s == 0) return x.model.initial[c] + start;
  const double* matrix = x.model.transition_slice(std::min(k, dims.max_duration) - 1) + c;
  const double* value = lattice.value.data() + s * dims.stride;
  std::vector<double> terms(at(dims.classes));
  for (std::int64_t from = 0; from < dims.classes; ++from)
    terms[at(from)] = value[from] + (matrix[from * dims.stride] + x.row.transitions(s, from, c));
  return sum_of(terms, lattice.sum) + start;
}

double lattice_segment(const LatticeInput& x, const Lattice& lattice, std::int64_t s,
                       std::int64_t k, std::int64_t c) {
  const std::int64_t stride = x.model.dims.stride;
  double inside = x.model.duration[(k - 1) * stride + c] + x.row.segments(s, k, c);
  for (std::int64_t t = s; t < s + k; ++t) inside += x.row.emission[t * stride + c];
  return lattice_enter(x, lattice, s, k, c) + inside + lattice.sink[(s + k) * stride + c] +
         (lattice.base[at(s)] + lattice.rest_base[at(s + k)] - lattice.log_partition);
}

double lattice_score(const LatticeInput& x, const SegmentationsView& y, std::int64_t first,
                     std::int64_t last) {
  const std::int64_t stride = x.model.dims.stride;
  const std::int64_t longest = x.model.dims.max_duration;
  double score = 0.0;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t c = y.label(i);
    const std::int64_t begin = y.start(i);
    const std::int64_t end = begin + y.duration(i);
    const std::int64_t k = std::min(longest, end - begin) - 1;
    double segment = x.model.duration[k * stride + c];
    for (std::int64_t t = begin; t < end; ++t) segment += x.row.emission[t * stride + c];
    if (x.row.start != nullptr) segment += x.row.start[begin * stride + c];
    if (x.row.end != nullptr) segment += x.row.end[(end - 1) * stride + c];
    segment += x.row.segments(begin, k + 1, c);
    segment += i == first ? x.model.initial[c]
                          : x.model.transition_slice(k)[y.label(i - 1) * stride + c] +
                                x.row.transitions(begin, y.label(i - 1), c);
    if (end - begin > longest) segment += static_cast<double>(end - begin - longest) * x.tail[c];
    score += segment;
  }
  return last > first ? score + x.model.final[y.label(last - 1)] : score;
}

}  // namespace segfuse::semicrf
