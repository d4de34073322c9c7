#include <fmt/core.h>

#include <algorithm>

#include "segfuse/error.h"
#include "semicrf/model/scope.h"

namespace segfuse::semicrf {
namespace {

template <class T, int N>
void check_shape(const char* name, const View<T, N>& view,
                 const typename View<T, N>::Axes& wanted) {
  if (view.empty()) return;
  for (std::size_t axis = 0; axis < wanted.size(); ++axis) {
    if (view.extents()[axis] != wanted[axis])
      throw UsageError(fmt::format("semicrf: axis {} of {} has {} elements, expected {}", axis,
                                   name, view.extents()[axis], wanted[axis]));
  }
}

/// Whether frame t may have label c.
bool allows(const Constraints& x, std::int64_t b, std::int64_t t, std::int64_t c) {
  if (!x.allowed.empty() && x.allowed(b, t, c) == 0) return false;
  return x.label.empty() || x.label(b, t) < 0 || x.label(b, t) == c;
}

bool limits_duration(const Constraints& x) {
  return !x.min_duration.empty() || !x.max_duration.empty();
}

bool allows_duration(const Constraints& x, std::int64_t frames, std::int64_t c) {
  return (x.min_duration.empty() || frames >= x.min_duration(c)) &&
         (x.max_duration.empty() || frames <= x.max_duration(c));
}

/// All of a view, contiguous.
template <class T, int N>
std::vector<T> copy_of(const View<const T, N>& view) {
  std::vector<T> out;
  std::array<std::int64_t, 3> extents{1, 1, 1};
  std::array<std::int64_t, 3> strides{0, 0, 0};
  for (int axis = 0; axis < N; ++axis) {
    extents[static_cast<std::size_t>(3 - N + axis)] = view.extent(axis);
    strides[static_cast<std::size_t>(3 - N + axis)] = view.stride(axis);
  }
  const View<const T, 3> all(view.data(), extents, strides);
  out.reserve(static_cast<std::size_t>(extents[0] * extents[1] * extents[2]));
  for (std::int64_t i = 0; i < extents[0]; ++i)
    for (std::int64_t j = 0; j < extents[1]; ++j)
      for (std::int64_t k = 0; k < extents[2]; ++k) out.push_back(all(i, j, k));
  return out;
}

}  // namespace

void check_constraint_shapes(const Constraints& x, const Dims& dims) {
  check_shape("allowed (B, T, C)", x.allowed, {dims.batch, dims.frames, dims.classes});
  check_shape("the allowed transition (C, C)", x.transition, {dims.classes, dims.classes});
  check_shape("min_duration (C)", x.min_duration, {dims.classes});
  check_shape("max_duration (C)", x.max_duration, {dims.classes});
  check_shape("label (B, T)", x.label, {dims.batch, dims.frames});
  check_shape("boundary (B, T)", x.boundary, {dims.batch, dims.frames});
}

void check_constraints(const Constraints& x, const Dims& dims, const Lengths& lengths) {
  check_constraint_shapes(x, dims);
  for (std::int64_t b = 0; b < dims.batch; ++b) {
    const std::int64_t length = row_length(lengths, dims, b);
    for (std::int64_t t = 0; !x.label.empty() && t < length; ++t) {
      if (x.label(b, t) >= dims.classes)
        throw DataError(fmt::format("semicrf: batch {}, time {}: known label {} is not below {}", b,
                                    t, x.label(b, t), dims.classes));
    }
    for (std::int64_t t = 0; !x.boundary.empty() && t < length; ++t) {
      if (x.boundary(b, t) < -1 || x.boundary(b, t) > 1)
        throw DataError(
            fmt::format("semicrf: batch {}, time {}: known boundary {} is not -1, 0 or 1", b, t,
                        x.boundary(b, t)));
    }
  }
}

void check_scope(const Scope& scope, const Dims& dims, const Lengths& lengths) {
  const Constraints& x = scope.constraints;
  check_constraints(x, dims, lengths);
  if (scope.tail.empty()) return;
  check_vector("tail", false, scope.tail.extent(0), dims.classes);
  for (std::int64_t c = 0; c < dims.classes; ++c) {
    if (!(scope.tail(c) < std::numeric_limits<double>::infinity()))
      throw DataError(
          fmt::format("semicrf: tail[{}] is {}; scores are finite or -inf", c, scope.tail(c)));
    for (const auto* limit : {&x.min_duration, &x.max_duration}) {
      if (!limit->empty() && (*limit)(c) > dims.max_duration)
        throw UsageError(fmt::format(
            "semicrf: label {} is limited to {} frames, but with a tail limits are at most K = {}",
            c, (*limit)(c), dims.max_duration));
    }
  }
}

void constrain_model(const Constraints& x, ScopedModel& scoped) {
  const Dims& dims = scoped.model.dims;
  if (!x.transition.empty()) {
    for (std::int64_t i = 0; i < dims.slices() * dims.classes; ++i)
      for (std::int64_t c = 0; c < dims.classes; ++c)
        if (x.transition(i % dims.classes, c) == 0)
          scoped.model.transition[i * dims.stride + c] = kNegInf;
  }
  if (!limits_duration(x)) return;
  for (std::int64_t k = 0; k < dims.max_duration; ++k)
    for (std::int64_t c = 0; c < dims.classes; ++c)
      if (!allows_duration(x, k + 1, c)) scoped.model.duration[k * dims.stride + c] = kNegInf;
  if (scoped.tail.size() == 0 || x.max_duration.empty()) return;
  std::fill_n(scoped.tail.data(), dims.classes, kNegInf);
}

void constrain_row(const Constraints& x, const Dims& dims, std::int64_t b, ScopedRow& scoped) {
  Row& row = scoped.row;
  scoped.forced.clear();
  if (!x.allowed.empty() || !x.label.empty()) {
    for (std::int64_t t = 0; t < row.length; ++t)
      for (std::int64_t c = 0; c < dims.classes; ++c)
        if (!allows(x, b, t, c)) scoped.buffers.emission[t * dims.stride + c] = kNegInf;
  }
  if (x.boundary.empty() || row.length == 0) return;
  if (row.start == nullptr) scoped.buffers.start.assign(row.length * dims.stride, 0.0);
  row.start = scoped.buffers.start.data();
  scoped.forced.resize(static_cast<std::size_t>(row.length));
  for (std::int64_t t = 0; t < row.length; ++t) {
    scoped.forced[static_cast<std::size_t>(t)] = x.boundary(b, t) == 1 ? 1 : 0;
    if (x.boundary(b, t) == 0)
      std::fill_n(scoped.buffers.start.data() + t * dims.stride, dims.classes, kNegInf);
  }
}

KnownFrames::KnownFrames(const SegmentationsView& y, std::int64_t frames)
    : rows_(y.row_pointer.extent(0) - 1),
      frames_(frames),
      label_(static_cast<std::size_t>(num_elements({rows_, frames}))),
      boundary_(label_.size(), -1) {
  labels_from_segmentations(y, View<std::int32_t, 2>(label_.data(), {rows_, frames}), -1);
  for (std::int64_t b = 0; b < rows_; ++b) {
    for (std::int64_t i = y.row_pointer(b); i < y.row_pointer(b + 1); ++i) {
      std::int8_t* first = boundary_.data() + b * frames + y.start(i);
      if (std::any_of(first, first + y.duration(i), [](std::int8_t known) { return known >= 0; }))
        throw DataError(fmt::format(
            "semicrf: segments of batch {} overlap the one at frame {}, expected each frame in one",
            b, y.start(i)));
      std::fill_n(first, y.duration(i), std::int8_t{0});
      *first = 1;
    }
  }
}

Constraints KnownFrames::constraints() const {
  if (static_cast<std::int64_t>(label_.size()) != rows_ * frames_) refuse_moved_from("KnownFrames");
  Constraints x;
  x.label = {label_.data(), {rows_, frames_}};
  x.boundary = {boundary_.data(), {rows_, frames_}};
  return x;
}

template <class T>
ConstrainedPotentials<T>::ConstrainedPotentials(const Potentials<T>& potentials,
                                                const Constraints& x)
    : potentials_(std::make_unique<Potentials<T>>(potentials)) {
  const Dims dims = check_with_tables(potentials);
  check_constraints(x, dims, potentials.lengths);
  const auto forbidden = static_cast<T>(kNegInf);
  Potentials<T>& p = *potentials_;
  const auto for_frames = [&](const auto& visit) {
    for (std::int64_t b = 0; b < dims.batch; ++b)
      for (std::int64_t t = 0; t < row_length(p.lengths, dims, b); ++t)
        visit(b, t, (b * dims.frames + t) * dims.classes);
  };
  if (!x.allowed.empty() || !x.label.empty()) {
    emission_ = copy_of(p.emission);
    for_frames([&](std::int64_t b, std::int64_t t, std::int64_t frame) {
      for (std::int64_t c = 0; c < dims.classes; ++c)
        if (!allows(x, b, t, c)) emission_[static_cast<std::size_t>(frame + c)] = forbidden;
    });
    p.emission = {emission_.data(), p.emission.extents()};
  }
  if (!x.transition.empty()) {
    transition_ = copy_of(p.transition);
    const View<T, 3> copy(transition_.data(), p.transition.extents());
    for (std::int64_t k = 0; k < dims.slices(); ++k)
      for (std::int64_t i = 0; i < dims.classes; ++i)
        for (std::int64_t c = 0; c < dims.classes; ++c)
          if (x.transition(i, c) == 0) copy(k, i, c) = forbidden;
    p.transition = copy;
  }
  if (limits_duration(x)) {
    duration_ = copy_of(p.duration);
    const View<T, 2> copy(duration_.data(), p.duration.extents());
    for (std::int64_t k = 0; k < dims.max_duration; ++k)
      for (std::int64_t c = 0; c < dims.classes; ++c)
        if (!allows_duration(x, k + 1, c)) copy(k, c) = forbidden;
    p.duration = copy;
  }
  if (x.boundary.empty()) return;
  if (p.start.empty())
    start_.assign(static_cast<std::size_t>(dims.batch * dims.frames * dims.classes), T{0});
  else
    start_ = copy_of(p.start);
  for_frames([&](std::int64_t b, std::int64_t t, std::int64_t frame) {
    if (t > 0 && x.boundary(b, t) == 1)
      throw UsageError(fmt::format(
          "semicrf: batch {}, time {}: a segment that must start here cannot be written as scores; "
          "pass the constraints to Inference",
          b, t));
    if (x.boundary(b, t) == 0) std::fill_n(start_.begin() + frame, dims.classes, forbidden);
  });
  p.start = {start_.data(), p.emission.extents()};
}

template class ConstrainedPotentials<float>;
template class ConstrainedPotentials<double>;

}  // namespace segfuse::semicrf
