#pragma once
// The caller's views of device memory as the kernels take them.

#include <fmt/core.h>

#include <string>

#include "base/sizes.h"
#include "segfuse/error.h"
#include "segfuse/semicrf.h"
#include "semicrf/cuda/kernels/common/arguments.h"
#include "semicrf/cuda/queue.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

inline constexpr std::int64_t kLargestGridSide = 65535;

/// How programs name the type in which scores are stored.
template <class T>
inline constexpr const char* kInputName = nullptr;
template <>
inline constexpr const char* kInputName<float> = "float";
template <>
inline constexpr const char* kInputName<double> = "double";
template <>
inline constexpr const char* kInputName<Half> = "Half";
template <>
inline constexpr const char* kInputName<BFloat16> = "BFloat16";

inline unsigned side(std::int64_t n) { return static_cast<unsigned>(n); }

template <class T, int N>
gpu::Strided strided(const View<const T, N>& view) {
  gpu::Strided out{view.data(), {0, 0, 0}};
  for (int axis = 0; axis < N; ++axis) out.stride[axis] = view.stride(axis);
  return out;
}

template <class T, int N>
gpu::StridedOut strided_out(const View<T, N>& view) {
  gpu::StridedOut out{view.data(), {0, 0, 0}};
  for (int axis = 0; axis < N; ++axis) out.stride[axis] = view.stride(axis);
  return out;
}

/// One value a row, with the caller's stride. Device is what the kernels take T for.
template <class Device, class T>
gpu::RowOutput<Device> row_output(const char* name, const View<T, 1>& view, std::int64_t rows) {
  static_assert(sizeof(Device) == sizeof(T));
  if (view.empty()) return {nullptr, 0};
  check_vector(name, false, view.extent(0), rows);
  return {reinterpret_cast<Device*>(view.data()), view.stride(0)};
}

/// An array that kernels write as a whole.
template <class T>
T* whole_output(const char* name, const View<T, 1>& view, std::int64_t n) {
  if (view.empty()) return nullptr;
  check_vector(name, false, view.extent(0), n);
  if (n > 1 && view.stride(0) != 1)
    throw UsageError(fmt::format("semicrf: {} on the device must be contiguous; its stride is {}",
                                 name, view.stride(0)));
  return view.data();
}

template <class T>
void check_contiguous(const char* name, const View<const T, 1>& view) {
  if (view.extent(0) > 1 && view.stride(0) != 1)
    throw UsageError(
        fmt::format("semicrf: the segmentations' {} on the device must be contiguous", name));
}

inline gpu::RowLengths row_lengths(const Lengths& lengths) {
  gpu::RowLengths out{};
  if (!lengths.wide().empty()) {
    static_assert(sizeof(long long) == sizeof(std::int64_t));
    out.wide = reinterpret_cast<const long long*>(lengths.wide().data());
    out.stride = lengths.wide().stride(0);
  } else if (!lengths.narrow().empty()) {
    out.narrow = lengths.narrow().data();
    out.stride = lengths.narrow().stride(0);
  }
  return out;
}

/// Where the first fault of an input lies, as the CPU engine names it.
std::string describe_fault(int kind, unsigned long long index, const gpu::Sizes& sizes);
/// Waits for the stream; throws the first fault, if there is one, after clearing all.
void check_faults(gpu::Queue& queue, unsigned long long* faults, const gpu::Sizes& sizes,
                  runtime::StreamHandle stream);

}  // namespace segfuse::semicrf
