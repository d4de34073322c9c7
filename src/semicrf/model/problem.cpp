#include "semicrf/model/problem.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "segfuse/error.h"

namespace segfuse::semicrf {
namespace {

/// True for what a score may be: finite or -inf.
inline bool is_score(double value) { return value < std::numeric_limits<double>::infinity(); }

template <class T, int N>
std::string extents_of(const View<T, N>& view) {
  std::string text = "(";
  for (int axis = 0; axis < N; ++axis)
    text += fmt::format("{}{}", axis ? ", " : "", view.extent(axis));
  return text + ")";
}

template <class T, int N>
void check_extents(const char* name, const char* axes, const View<T, N>& view,
                   const std::array<std::int64_t, static_cast<std::size_t>(N)>& expected) {
  if (view.extents() == expected) return;
  const View<T, N> wanted(view.data(), expected);
  throw UsageError(fmt::format("semicrf: {} has shape {}, expected {} = {}", name, extents_of(view),
                               axes, extents_of(wanted)));
}

template <class T, int N>
void check_optional(const char* name, const char* axes, const View<T, N>& view,
                    const std::array<std::int64_t, static_cast<std::size_t>(N)>& expected) {
  if (!view.empty()) check_extents(name, axes, view, expected);
}

/// Extents of transition_scores.
View<const double, 4>::Axes transition_table(const Dims& dims) {
  const std::int64_t rows = dims.shared_transition_scores ? 1 : dims.batch;
  return {rows, dims.frames, dims.classes, dims.classes};
}

template <class T>
void load_table(const char* name, const View<const T, 2>& table, std::int64_t stride, double* out) {
  for (std::int64_t i = 0; i < table.extent(0); ++i) {
    for (std::int64_t c = 0; c < stride; ++c) {
      const double value = c < table.extent(1) ? static_cast<double>(table(i, c)) : kNegInf;
      if (!is_score(value))
        throw DataError(
            fmt::format("semicrf: {}[{}, {}] is {}; scores are finite or -inf", name, i, c, value));
      out[i * stride + c] = value;
    }
  }
}

template <class T>
void load_vector(const char* name, const View<const T, 1>& values, const Dims& dims,
                 AlignedDoubles& out) {
  out.assign(dims.stride, kNegInf);
  for (std::int64_t c = 0; c < dims.classes; ++c) {
    out[c] = values.empty() ? 0.0 : static_cast<double>(values(c));
    if (!is_score(out[c]))
      throw DataError(
          fmt::format("semicrf: {}[{}] is {}; scores are finite or -inf", name, c, out[c]));
  }
}

/// Copies one frame, zero-padded; false when an element is NaN or +inf.
template <class T>
bool load_frame(const T* from, std::int64_t step, std::int64_t classes, std::int64_t stride,
                double* to) {
  bool good = true;
  if (step == 1) {
    for (std::int64_t c = 0; c < classes; ++c) {
      to[c] = static_cast<double>(from[c]);
      good &= is_score(to[c]);
    }
  } else {
    for (std::int64_t c = 0; c < classes; ++c) {
      to[c] = static_cast<double>(from[c * step]);
      good &= is_score(to[c]);
    }
  }
  for (std::int64_t c = classes; c < stride; ++c) to[c] = 0.0;
  return good;
}

template <class T>
const double* load_frames(const char* name, const View<const T, 3>& view, const Dims& dims,
                          std::int64_t row, std::int64_t length, ThreadPool* pool,
                          AlignedDoubles& buffer) {
  if (view.empty()) return nullptr;
  buffer.resize(length * dims.stride);
  for_frames(pool, length, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t t = begin; t < end; ++t) {
      double* frame = buffer.data() + t * dims.stride;
      if (load_frame(&view(row, t, 0), view.stride(2), dims.classes, dims.stride, frame)) continue;
      const double* bad = std::find_if_not(frame, frame + dims.classes, is_score);
      throw DataError(
          fmt::format("semicrf: {} at batch {}, time {}, class {} is {}; scores are finite or -inf",
                      name, row, t, bad - frame, *bad));
    }
  });
  return buffer.data();
}

/// Looks at the numbers of a row's tables that are within its length.
void check_tables(const Row& row, const Dims& dims, std::int64_t b) {
  const std::int64_t classes = dims.classes;
  std::vector<double> scores(
      static_cast<std::size_t>(classes * std::max(dims.max_duration, classes)));
  const auto find_bad = [&](std::int64_t n) {
    return std::find_if_not(scores.begin(), scores.begin() + n * classes, is_score) -
           scores.begin();
  };
  for (std::int64_t s = 0; s < row.length && row.segments.present(); ++s) {
    const std::int64_t n = std::min(dims.max_duration, row.length - s);
    if (row.segments.are_scores(s, n)) continue;
    std::fill_n(scores.begin(), n * classes, 0.0);
    row.segments.add_starting(s, n, classes, scores.data());
    if (const std::int64_t i = find_bad(n); i < n * classes)
      throw DataError(fmt::format(
          "semicrf: segment_scores at batch {}, time {}, duration {}, class {} is {}; scores are "
          "finite or -inf",
          b, s, i / classes + 1, i % classes, scores[static_cast<std::size_t>(i)]));
  }
  for (std::int64_t s = 1; s < row.length && row.transitions.present(); ++s) {
    if (row.transitions.are_scores(s)) continue;
    std::fill_n(scores.begin(), classes * classes, 0.0);
    row.transitions.add(s, classes, scores.data());
    if (const std::int64_t i = find_bad(classes); i < classes * classes)
      throw DataError(
          fmt::format("semicrf: transition_scores at batch {}, time {}, from {}, to {} is {}; "
                      "scores are finite "
                      "or -inf",
                      b, s, i / classes, i % classes, scores[static_cast<std::size_t>(i)]));
  }
}

}  // namespace

template <class T>
Dims check_potentials(const Potentials<T>& p) {
  if (has_tables(p))
    throw UsageError(fmt::format(
        "semicrf: this function takes no {}; docs/semicrf.md has a list of those that do, all of "
        "them on the CPU",
        p.segment_scores.empty() ? "transition_scores" : "segment_scores"));
  return check_with_tables(p);
}

template <class T>
Dims check_with_tables(const Potentials<T>& p) {
  Dims dims;
  dims.batch = p.emission.extent(0);
  dims.frames = p.emission.extent(1);
  dims.classes = p.emission.extent(2);
  dims.stride = padded(dims.classes);
  dims.max_duration = p.duration.extent(0);
  if (dims.batch < 0 || dims.frames < 0 || dims.classes < 1)
    throw UsageError(
        fmt::format("semicrf: emission has shape {}, expected (B, T, C) with at least one class",
                    extents_of(p.emission)));
  if (p.emission.empty() && dims.batch * dims.frames > 0)
    throw UsageError(
        fmt::format("semicrf: emission of shape {} has no data", extents_of(p.emission)));
  if (dims.max_duration < 1 || p.duration.empty())
    throw UsageError(
        fmt::format("semicrf: duration has {} rows, expected at least one", dims.max_duration));
  check_extents("duration", "(K, C)", p.duration, {dims.max_duration, dims.classes});
  if (p.transition.empty()) throw UsageError("semicrf: transition is missing");
  const std::int64_t slices = p.transition.extent(0);
  dims.by_duration = slices != 1 && slices == dims.max_duration;
  if (!dims.by_duration && slices != 1 && slices == dims.frames)
    throw UsageError(fmt::format(
        "semicrf: transition has shape {}, expected (C, C) or (K, C, C) with K = {}; scores of "
        "transitions by time are transition_scores",
        extents_of(p.transition), dims.max_duration));
  check_extents("transition", dims.by_duration ? "(K, C, C)" : "(1, C, C)", p.transition,
                {dims.slices(), dims.classes, dims.classes});
  check_optional("initial", "(C)", p.initial, {dims.classes});
  check_optional("final", "(C)", p.final, {dims.classes});
  check_optional("start", "(B, T, C)", p.start, p.emission.extents());
  check_optional("end", "(B, T, C)", p.end, p.emission.extents());
  check_optional("segment_scores", "(B, T, K, C)", p.segment_scores,
                 {dims.batch, dims.frames, dims.max_duration, dims.classes});
  dims.segment_scores = !p.segment_scores.empty();
  dims.transition_scores = !p.transition_scores.empty();
  dims.shared_transition_scores = dims.transition_scores && p.transition_scores.extent(0) == 1;
  check_optional("transition_scores",
                 dims.shared_transition_scores ? "(1, T, C, C)" : "(B, T, C, C)",
                 p.transition_scores, transition_table(dims));
  if (p.lengths.empty()) return dims;
  check_vector("lengths", false, p.lengths.size(), dims.batch);
  for (std::int64_t b = 0; b < dims.batch; ++b) {
    if (p.lengths[b] < 0 || p.lengths[b] > dims.frames)
      throw UsageError(
          fmt::format("semicrf: length {} of batch {} is not in [0, {}], the frames of emission",
                      p.lengths[b], b, dims.frames));
  }
  return dims;
}

template <class T>
void check_gradients(const Gradients<T>& g, const Dims& d) {
  check_optional("the emission gradient", "(B, T, C)", g.emission, {d.batch, d.frames, d.classes});
  check_optional("the transition gradient", d.by_duration ? "(K, C, C)" : "(1, C, C)", g.transition,
                 {d.slices(), d.classes, d.classes});
  check_optional("the duration gradient", "(K, C)", g.duration, {d.max_duration, d.classes});
  check_optional("the initial gradient", "(C)", g.initial, {d.classes});
  check_optional("the final gradient", "(C)", g.final, {d.classes});
  check_optional("the start gradient", "(B, T, C)", g.start, {d.batch, d.frames, d.classes});
  check_optional("the end gradient", "(B, T, C)", g.end, {d.batch, d.frames, d.classes});
  for (const auto& [name, lone] :
       {std::pair("segment_scores", !g.segment_scores.empty() && !d.segment_scores),
        std::pair("transition_scores", !g.transition_scores.empty() && !d.transition_scores)}) {
    if (lone)
      throw UsageError(fmt::format(
          "semicrf: found an array for the gradient of {0}, but no {0}; pass both or neither",
          name));
  }
  check_optional("the segment_scores gradient", "(B, T, K, C)", g.segment_scores,
                 {d.batch, d.frames, d.max_duration, d.classes});
  check_optional("the transition_scores gradient",
                 d.shared_transition_scores ? "(1, T, C, C)" : "(B, T, C, C)", g.transition_scores,
                 transition_table(d));
}

void check_vector(const char* name, bool empty, std::int64_t extent, std::int64_t n) {
  if (!empty && extent != n)
    throw UsageError(fmt::format("semicrf: {} has {} elements, expected {}", name, extent, n));
}

void check_weights(const View<const double, 1>& weights, const Dims& dims) {
  if (weights.empty()) return;
  check_vector("weights", false, weights.extent(0), dims.batch);
  for (std::int64_t b = 0; b < dims.batch; ++b) {
    if (!std::isfinite(weights(b)))
      throw UsageError(fmt::format("semicrf: weight {} of batch {} is not finite", weights(b), b));
  }
}

template <class T>
void load_model(const Potentials<T>& p, const Dims& dims, Model& model) {
  model.dims = dims;
  model.transition.resize(dims.slices() * dims.classes * dims.stride);
  for (std::int64_t k = 0; k < dims.slices(); ++k) {
    const View<const T, 2> slice(&p.transition(k, 0, 0), {dims.classes, dims.classes},
                                 {p.transition.stride(1), p.transition.stride(2)});
    load_table("transition", slice, dims.stride,
               model.transition.data() + k * dims.classes * dims.stride);
  }
  model.duration.resize(dims.max_duration * dims.stride);
  load_table("duration", p.duration, dims.stride, model.duration.data());
  load_vector("initial", p.initial, dims, model.initial);
  load_vector("final", p.final, dims, model.final);
}

std::int64_t row_length(const Lengths& lengths, const Dims& dims, std::int64_t row) {
  return lengths.empty() ? dims.frames : lengths[row];
}

template <class T>
Row load_row(const Potentials<T>& p, const Dims& dims, std::int64_t b, RowBuffers& buffers,
             ThreadPool* pool) {
  Row row;
  row.length = row_length(p.lengths, dims, b);
  if (row.length == 0) return row;
  row.emission = load_frames("emission", p.emission, dims, b, row.length, pool, buffers.emission);
  row.start = load_frames("start", p.start, dims, b, row.length, pool, buffers.start);
  row.end = load_frames("end", p.end, dims, b, row.length, pool, buffers.end);
  if (dims.segment_scores) row.segments = SegmentTable(p.segment_scores, b);
  if (dims.transition_scores) row.transitions = TransitionTable(p.transition_scores, b);
  if (row.has_tables()) check_tables(row, dims, b);
  return row;
}

double need_finite_sum(double sum) {
  if (sum < -kNegInf) return sum;
  throw DataError(
      "semicrf: the scores of a row add up to more than a double holds (1.8e308); scale them down");
}

double most_of_frames(const Row& row, const Dims& dims) {
  double sum = 0.0;
  for (std::int64_t t = 0; t < row.length; ++t)
    for (const double* scores : {row.emission, row.start, row.end}) {
      if (scores == nullptr) continue;
      const double* const frame = scores + t * dims.stride;
      sum += std::max(0.0, *std::max_element(frame, frame + dims.classes));
    }
  return sum;
}

double score_row(const Model& model, const Row& row, const SegmentationsView& y, std::int64_t first,
                 std::int64_t last) {
  const std::int64_t stride = model.dims.stride;
  double score = 0.0;
  for (std::int64_t i = first; i < last; ++i) {
    const std::int64_t c = y.label(i);
    const std::int64_t begin = y.start(i);
    const std::int64_t end = begin + y.duration(i);
    double segment = model.duration[(end - begin - 1) * stride + c];
    for (std::int64_t t = begin; t < end; ++t) segment += row.emission[t * stride + c];
    if (row.start != nullptr) segment += row.start[begin * stride + c];
    if (row.end != nullptr) segment += row.end[(end - 1) * stride + c];
    segment += row.segments(begin, end - begin, c);
    segment += i == first ? model.initial[c]
                          : model.transition_slice(end - begin - 1)[y.label(i - 1) * stride + c] +
                                row.transitions(begin, y.label(i - 1), c);
    score += segment;
  }
  return last > first ? score + model.final[y.label(last - 1)] : score;
}

void check_segments(const SegmentationsView& y, const Dims& dims, const Lengths& lengths,
                    bool tiling) {
  const std::int64_t n = y.start.extent(0);
  check_vector("the row pointer of the segmentations", false, y.row_pointer.extent(0),
               dims.batch + 1);
  check_vector("the durations of the segmentations", false, y.duration.extent(0), n);
  check_vector("the labels of the segmentations", false, y.label.extent(0), n);
  if (y.row_pointer(0) != 0 || y.row_pointer(dims.batch) != n)
    throw UsageError(
        fmt::format("semicrf: the row pointer of the segmentations runs from {} to {}, not 0 to {}",
                    y.row_pointer(0), y.row_pointer(dims.batch), n));
  for (std::int64_t b = 0; b < dims.batch; ++b) {
    if (y.row_pointer(b + 1) < y.row_pointer(b))
      throw UsageError(
          fmt::format("semicrf: the row pointer of the segmentations decreases at batch {}", b));
    const std::int64_t length = row_length(lengths, dims, b);
    std::int64_t covered = 0;
    for (std::int64_t i = y.row_pointer(b); i < y.row_pointer(b + 1); ++i) {
      const std::int64_t start = y.start(i);
      const std::int64_t duration = y.duration(i);
      const std::int64_t ordinal = i - y.row_pointer(b);
      if (y.label(i) < 0 || y.label(i) >= dims.classes)
        throw DataError(
            fmt::format("semicrf: segment {} of batch {} has label {}, expected [0, {})", ordinal,
                        b, y.label(i), dims.classes));
      if (duration < 1 || duration > dims.max_duration)
        throw DataError(fmt::format(
            "semicrf: segment {} of batch {} has {} frames, but the model allows 1 to {}; "
            "raise K or split long segments",
            ordinal, b, duration, dims.max_duration));
      if (start < 0 || start + duration > length)
        throw DataError(
            fmt::format("semicrf: segment {} of batch {} covers frames {} to {}, outside [0, {})",
                        ordinal, b, start, start + duration, length));
      if (tiling && start != covered)
        throw DataError(
            fmt::format("semicrf: segment {} of batch {} starts at {}, expected {}: segments tile "
                        "the row",
                        ordinal, b, start, covered));
      covered = start + duration;
    }
    if (tiling && covered != length)
      throw DataError(fmt::format(
          "semicrf: the segments of batch {} end at frame {}, the row at {}", b, covered, length));
  }
}

#define SEGFUSE_INSTANTIATE(T)                                         \
  template Dims check_potentials(const Potentials<T>&);                \
  template Dims check_with_tables(const Potentials<T>&);               \
  template void check_gradients(const Gradients<T>&, const Dims&);     \
  template void load_model(const Potentials<T>&, const Dims&, Model&); \
  template Row load_row(const Potentials<T>&, const Dims&, std::int64_t, RowBuffers&, ThreadPool*);

SEGFUSE_INSTANTIATE(float)
SEGFUSE_INSTANTIATE(double)
SEGFUSE_INSTANTIATE(Half)
SEGFUSE_INSTANTIATE(BFloat16)
#undef SEGFUSE_INSTANTIATE

}  // namespace segfuse::semicrf
