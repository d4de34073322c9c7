#pragma once
// What a call works on: the caller's arrays, checked for dtype, rank and device.

#include <variant>
#include <vector>

#include "arrays.h"

namespace segfuse::python {

/// The inputs of a model; keeps the caller's arrays alive. Extents are checked by the engine.
class Problem {
 public:
  using Potentials =
      std::variant<semicrf::Potentials<float>, semicrf::Potentials<double>>;  // by dtype

  /// Each array but the first three may be None. The stream is that of a CUDA device.
  Problem(nb::handle emission, nb::handle transition, nb::handle duration, nb::handle initial,
          nb::handle final, nb::handle start, nb::handle end, nb::handle segment_scores,
          nb::handle transition_scores, nb::handle lengths, std::uintptr_t stream);

  const Device& device() const { return device_; }
  void* stream() const { return stream_; }
  const Potentials& potentials() const { return potentials_; }
  /// "float32" or "float64".
  std::string dtype() const;
  std::int64_t batch() const { return extents_[0]; }
  std::int64_t frames() const { return extents_[1]; }
  std::int64_t classes() const { return extents_[2]; }
  std::int64_t max_duration() const { return max_duration_; }
  /// Frames of a row, below batch(); the arrays lie on the CPU.
  std::int64_t length(std::int64_t row) const;

 private:
  /// The array, on the same device as those before it.
  const Input& take(const char* name, nb::handle object);
  template <class T, int N>
  semicrf::View<const T, N> scores(const char* name, const char* axes, nb::handle object);
  template <class T>
  semicrf::View<const T, 3> transition(nb::handle object);
  template <class T>
  semicrf::View<const T, 4> transition_table(nb::handle object);
  semicrf::Lengths lengths(nb::handle object);

  std::vector<Input> arrays_;
  Device device_;
  void* stream_ = nullptr;
  Potentials potentials_;
  semicrf::View<const char, 3>::Axes extents_{};
  std::int64_t max_duration_ = 0;
};

/// Packed segmentations: the caller's arrays where their dtypes allow, or our own copy. On a CUDA
/// device the dtypes have to be right (row_pointer int64, the others int32), and the engine checks.
class Segments {
 public:
  Segments(nb::handle row_pointer, nb::handle start, nb::handle duration, nb::handle label);
  explicit Segments(semicrf::Segmentations own);
  Segments(const Segments&) = delete;
  Segments(Segments&&) = default;
  ~Segments() = default;

  semicrf::SegmentationsView view() const { return view_; }
  /// UsageError when they lie elsewhere.
  void need_device(const Device& device) const;
  /// Frames that each row's segments cover, if they tile it.
  std::vector<std::int64_t> frames() const;

 private:
  std::vector<Input> arrays_;
  Device device_{nb::device::cpu::value, 0};
  semicrf::Segmentations own_;
  semicrf::SegmentationsView view_;
};

/// Lengths (B), int32 or int64, on any device.
semicrf::Lengths lengths_of(const Input& array);

/// Segments from labels (B, T), int32 or int64; lengths may be None.
Segments segments_from_labels(nb::handle labels, nb::handle lengths,
                              const semicrf::LabelRules& rules);

/// Writes labels (B, T), int32 or int64; `ignore` where no segment is.
void labels_from_segments(const Segments& segments, nb::handle labels, std::int64_t ignore);

}  // namespace segfuse::python
