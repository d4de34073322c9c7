#include "problem.h"

#include <fmt/core.h>

#include <limits>
#include <type_traits>

namespace segfuse::python {

namespace sc = semicrf;

namespace {

void need_cpu(const char* name, const Device& device) {
  if (!device.is_cpu())
    throw UsageError(fmt::format("semicrf: {} is on {}, expected the CPU", name, to_text(device)));
}

template <class Array>
void need_integers(const char* name, const Array& array) {
  if (!has_dtype<std::int32_t>(array) && !has_dtype<std::int64_t>(array))
    throw UsageError(
        fmt::format("semicrf: {} is {}, expected int32 or int64", name, to_text(array.dtype())));
}

/// A vector of integers of another type, element by element.
template <class To, class From>
void convert(const char* name, const sc::View<const From, 1>& from, std::vector<To>& to) {
  to.resize(static_cast<std::size_t>(from.extent(0)));
  for (std::int64_t i = 0; i < from.extent(0); ++i) {
    const From value = from(i);
    if constexpr (sizeof(From) > sizeof(To)) {
      if (value < std::numeric_limits<To>::min() || value > std::numeric_limits<To>::max())
        throw UsageError(
            fmt::format("semicrf: {}[{}] is {}, which is out of range", name, i, value));
    }
    to[static_cast<std::size_t>(i)] = static_cast<To>(value);
  }
}

/// The array itself when it holds elements of type To; else a copy in `own`.
template <class To>
sc::View<const To, 1> integers(const char* name, const Input& array, std::vector<To>& own) {
  using Other = std::conditional_t<std::is_same_v<To, std::int32_t>, std::int64_t, std::int32_t>;
  need_integers(name, array);
  need_rank(name, "one axis", array, 1);
  if (has_dtype<To>(array)) return view_of<const To, 1>(array);
  need_cpu(name, device_of(array));
  convert(name, view_of<const Other, 1>(array), own);
  return own;
}

/// What the engine checks against the batch is checked here alone, for calls without an engine.
void check_row_pointer(const sc::SegmentationsView& y) {
  const std::int64_t n = y.start.extent(0);
  if (y.duration.extent(0) != n || y.label.extent(0) != n)
    throw UsageError(
        fmt::format("semicrf: segmentations have {} starts, {} durations and {} labels", n,
                    y.duration.extent(0), y.label.extent(0)));
  const std::int64_t rows = y.row_pointer.extent(0) - 1;
  if (rows < 0)
    throw UsageError("semicrf: row_pointer is empty, expected one element more than rows");
  if (y.row_pointer(0) != 0 || y.row_pointer(rows) != n)
    throw UsageError(
        fmt::format("semicrf: row_pointer runs from {} to {}, expected 0 to {}, the segments",
                    y.row_pointer(0), y.row_pointer(rows), n));
  for (std::int64_t b = 0; b < rows; ++b) {
    if (y.row_pointer(b + 1) < y.row_pointer(b))
      throw UsageError(fmt::format("semicrf: row_pointer decreases at batch {}", b));
  }
}

}  // namespace

sc::Lengths lengths_of(const Input& array) {
  need_integers("lengths", array);
  need_rank("lengths", "(B,)", array, 1);
  if (has_dtype<std::int32_t>(array)) return view_of<const std::int32_t, 1>(array);
  return view_of<const std::int64_t, 1>(array);
}

const Input& Problem::take(const char* name, nb::handle object) {
  arrays_.push_back(import_input(name, object));
  const Device device = device_of(arrays_.back());
  if (device != device_)
    throw UsageError(
        fmt::format("semicrf: {} is on {}, but emission is on {}; move all arrays to one device",
                    name, to_text(device), to_text(device_)));
  return arrays_.back();
}

template <class T, int N>
sc::View<const T, N> Problem::scores(const char* name, const char* axes, nb::handle object) {
  if (object.is_none()) return {};
  const Input& array = take(name, object);
  if (!has_dtype<T>(array))
    throw UsageError(
        fmt::format("semicrf: {} is {}, but emission is {}; all scores need the same dtype", name,
                    to_text(array.dtype()), to_text(nb::dtype<T>())));
  need_rank(name, axes, array, N);
  return view_of<const T, N>(array);
}

template <class T>
sc::View<const T, 3> Problem::transition(nb::handle object) {
  const Input array = import_input("transition", object);
  if (array.ndim() == 2) return sc::with_leading_axis(scores<T, 2>("transition", "", object));
  if (array.ndim() == 4)
    throw UsageError(fmt::format(
        "semicrf: transition has shape {}, expected (C, C) or (K, C, C); scores of transitions by "
        "time are transition_scores",
        shape_text(array)));
  return scores<T, 3>("transition", "(C, C) or (K, C, C)", object);
}

template <class T>
sc::View<const T, 4> Problem::transition_table(nb::handle object) {
  if (object.is_none()) return {};
  const Input array = import_input("transition_scores", object);
  if (array.ndim() == 3)
    return sc::with_leading_axis(scores<T, 3>("transition_scores", "", object));
  return scores<T, 4>("transition_scores", "(T, C, C) or (B, T, C, C)", object);
}

sc::Lengths Problem::lengths(nb::handle object) {
  if (object.is_none()) return {};
  return lengths_of(take("lengths", object));
}

Problem::Problem(nb::handle emission, nb::handle transition_matrix, nb::handle duration,
                 nb::handle initial, nb::handle final, nb::handle start, nb::handle end,
                 nb::handle segment_scores, nb::handle transition_scores, nb::handle row_lengths,
                 std::uintptr_t stream)
    : stream_(reinterpret_cast<void*>(stream)) {
  arrays_.reserve(11);
  const Input first = import_input("emission", emission);
  static_cast<void>(import_input("duration", duration));  // the other scores may be None
  device_ = device_of(first);
  const auto read = [&]<class T>(sc::Potentials<T> p) {
    p.emission = scores<T, 3>("emission", "(B, T, C)", emission);
    p.transition = transition<T>(transition_matrix);
    p.duration = scores<T, 2>("duration", "(K, C)", duration);
    p.initial = scores<T, 1>("initial", "(C,)", initial);
    p.final = scores<T, 1>("final", "(C,)", final);
    p.start = scores<T, 3>("start", "(B, T, C)", start);
    p.end = scores<T, 3>("end", "(B, T, C)", end);
    p.segment_scores = scores<T, 4>("segment_scores", "(B, T, K, C)", segment_scores);
    p.transition_scores = transition_table<T>(transition_scores);
    p.lengths = lengths(row_lengths);
    extents_ = p.emission.extents();
    max_duration_ = p.duration.extent(0);
    potentials_ = p;
  };
  if (has_dtype<float>(first))
    read(sc::Potentials<float>{});
  else if (has_dtype<double>(first))
    read(sc::Potentials<double>{});
  else
    throw UsageError(fmt::format("semicrf: emission is {}, expected float32 or float64",
                                 to_text(first.dtype())));
}

std::int64_t Problem::length(std::int64_t row) const {
  return std::visit(
      [&](const auto& potentials) {
        const sc::Lengths& lengths = potentials.lengths;
        if (lengths.empty()) return frames();
        if (lengths.size() != batch())
          throw UsageError(fmt::format("semicrf: lengths has {} elements, expected {}",
                                       lengths.size(), batch()));
        return lengths[row];
      },
      potentials_);
}

std::string Problem::dtype() const { return to_text(arrays_.front().dtype()); }

Segments::Segments(nb::handle row_pointer, nb::handle start, nb::handle duration,
                   nb::handle label) {
  const auto take = [this](const char* name, nb::handle object) {
    return arrays_.emplace_back(import_input(name, object));
  };
  view_.row_pointer = integers("row_pointer", take("row_pointer", row_pointer), own_.row_pointer);
  view_.start = integers("the starts of the segments", take("start", start), own_.start);
  view_.duration =
      integers("the durations of the segments", take("duration", duration), own_.duration);
  view_.label = integers("the labels of the segments", take("label", label), own_.label);
  device_ = device_of(arrays_.front());
  for (const Input& array : arrays_) {
    if (device_of(array) != device_)
      throw UsageError(fmt::format("semicrf: segments are on {} and on {}; move them to one device",
                                   to_text(device_), to_text(device_of(array))));
  }
  if (device_.is_cpu()) check_row_pointer(view_);
}

void Segments::need_device(const Device& device) const {
  if (device_ != device)
    throw UsageError(fmt::format("semicrf: the segments are on {}, expected {}", to_text(device_),
                                 to_text(device)));
}

Segments::Segments(sc::Segmentations own) : own_(std::move(own)), view_(own_.view()) {}

std::vector<std::int64_t> Segments::frames() const {
  need_device(Device{nb::device::cpu::value, 0});
  std::vector<std::int64_t> result;
  for (std::int64_t b = 0; b + 1 < view_.row_pointer.extent(0); ++b) {
    std::int64_t sum = 0;
    for (std::int64_t i = view_.row_pointer(b); i < view_.row_pointer(b + 1); ++i)
      sum += view_.duration(i);
    result.push_back(sum);
  }
  return result;
}

Segments segments_from_labels(nb::handle labels, nb::handle lengths, const sc::LabelRules& rules) {
  const Input array = import_input("labels", labels);
  need_cpu("labels", device_of(array));
  need_integers("labels", array);
  need_rank("labels", "(B, T)", array, 2);
  Input length_array;
  sc::Lengths row_lengths;
  if (!lengths.is_none()) {
    length_array = import_input("lengths", lengths);
    need_cpu("lengths", device_of(length_array));
    row_lengths = lengths_of(length_array);
  }
  const nb::gil_scoped_release release;
  if (has_dtype<std::int32_t>(array))
    return Segments(
        sc::segmentations_from_labels(view_of<const std::int32_t, 2>(array), row_lengths, rules));
  return Segments(
      sc::segmentations_from_labels(view_of<const std::int64_t, 2>(array), row_lengths, rules));
}

void labels_from_segments(const Segments& segments, nb::handle labels, std::int64_t ignore) {
  const Output array = import_output("labels", labels);
  segments.need_device(device_of(array));
  need_cpu("labels", device_of(array));
  need_integers("labels", array);
  need_rank("labels", "(B, T)", array, 2);
  if (has_dtype<std::int32_t>(array))
    sc::labels_from_segmentations(segments.view(), view_of<std::int32_t, 2>(array),
                                  static_cast<std::int32_t>(ignore));
  else
    sc::labels_from_segmentations(segments.view(), view_of<std::int64_t, 2>(array), ignore);
}

}  // namespace segfuse::python
