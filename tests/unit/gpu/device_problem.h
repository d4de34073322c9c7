#pragma once
// Problems in the memory of a device, and the results of a loss call read back.

#include <array>
#include <memory>
#include <vector>

#include "runtime/open_device.h"
#include "semicrf/cuda/over_device.h"
#include "unit/semicrf/problems.h"

namespace segfuse::semicrf::testing {

/// Device copies of host arrays, released together.
class DeviceArrays {
 public:
  explicit DeviceArrays(runtime::DeviceAccess gpu) : gpu_(std::move(gpu)) {}
  ~DeviceArrays() {
    for (std::byte* memory : all_) gpu_.memory->release(gpu_.home, memory);
  }
  DeviceArrays(const DeviceArrays&) = delete;
  DeviceArrays& operator=(const DeviceArrays&) = delete;

  template <class T>
  T* copy(const std::vector<T>& host) {
    T* device = space<T>(static_cast<std::int64_t>(host.size()));
    if (!host.empty()) {
      gpu_.device->copy(gpu_.home, device, host.data(), host.size() * sizeof(T));
      gpu_.device->synchronize(gpu_.home);
    }
    return device;
  }
  /// Filled with bytes that are a NaN.
  template <class T>
  T* space(std::int64_t n) {
    const std::size_t bytes = static_cast<std::size_t>(std::max<std::int64_t>(n, 1)) * sizeof(T);
    std::byte* memory = gpu_.memory->allocate(gpu_.home, bytes);
    all_.push_back(memory);
    gpu_.device->fill(gpu_.home, memory, 0xff, bytes);
    return reinterpret_cast<T*>(memory);
  }
  template <class T>
  std::vector<T> read(const T* device, std::int64_t n) {
    std::vector<T> host(static_cast<std::size_t>(n));
    if (n > 0) gpu_.device->read(gpu_.home, host.data(), device, host.size() * sizeof(T));
    return host;
  }

 private:
  runtime::DeviceAccess gpu_;
  std::vector<std::byte*> all_;
};

template <class T>
Potentials<T> on_device(const Problem<T>& p, DeviceArrays& device) {
  Potentials<T> q;
  q.emission = {device.copy(p.emission), {p.B, p.T_, p.C}};
  q.transition = {device.copy(p.transition), {p.slices(), p.C, p.C}};
  q.duration = {device.copy(p.duration), {p.K, p.C}};
  if (p.with_initial) q.initial = {device.copy(p.initial), {p.C}};
  if (p.with_final) q.final = {device.copy(p.final), {p.C}};
  if (p.with_start) q.start = {device.copy(p.start), {p.B, p.T_, p.C}};
  if (p.with_end) q.end = {device.copy(p.end), {p.B, p.T_, p.C}};
  if (!p.lengths.empty()) q.lengths = View<const std::int64_t, 1>(device.copy(p.lengths), {p.B});
  return q;
}

inline SegmentationsView on_device(const Segmentations& y, DeviceArrays& device) {
  const std::int64_t n = y.segments();
  return {{device.copy(y.row_pointer), {y.rows() + 1}},
          {device.copy(y.start), {n}},
          {device.copy(y.duration), {n}},
          {device.copy(y.label), {n}}};
}

inline Segmentations on_host(const DeviceSegmentations& y, DeviceArrays& device) {
  Segmentations out;
  out.row_pointer = device.read(y.row_pointer.data(), y.row_pointer.extent(0));
  const std::int64_t n = out.row_pointer.back();
  out.start = device.read(y.start.data(), n);
  out.duration = device.read(y.duration.data(), n);
  out.label = device.read(y.label.data(), n);
  return out;
}

/// Room for lists in device memory.
inline DeviceSegmentationLists lists_in(DeviceArrays& device, std::int64_t rows, std::int64_t n,
                                        std::int64_t room) {
  return {{device.space<std::int64_t>(rows + 1), {rows + 1}},
          {device.space<std::int64_t>(rows * n + 1), {rows * n + 1}},
          {device.space<std::int32_t>(room), {room}},
          {device.space<std::int32_t>(room), {room}},
          {device.space<std::int32_t>(room), {room}},
          {device.space<double>(rows * n), {rows * n}}};
}

inline SegmentationLists fetched(const DeviceSegmentationLists& y, DeviceArrays& device) {
  SegmentationLists out;
  out.list_pointer = device.read(y.list_pointer.data(), y.list_pointer.extent(0));
  const std::int64_t lists = out.list_pointer.back();
  out.score = device.read(y.score.data(), lists);
  out.segmentations.row_pointer = device.read(y.row_pointer.data(), lists + 1);
  const std::int64_t n = out.segmentations.row_pointer.back();
  out.segmentations.start = device.read(y.start.data(), n);
  out.segmentations.duration = device.read(y.duration.data(), n);
  out.segmentations.label = device.read(y.label.data(), n);
  return out;
}

/// Everything a loss call gives, on the host.
struct Results {
  std::vector<double> loss, log_partition, score;
  std::vector<RowStatus> status;
  std::vector<double> gradients;  ///< OwnedGradients::flat order
};

/// Gradients of a problem in device memory.
template <class T>
struct DeviceGradients {
  std::vector<std::pair<T*, std::int64_t>> arrays;
  Gradients<T> views;
  DeviceGradients(const Problem<T>& p, DeviceArrays& device) {
    const std::array<std::int64_t, 3> frames{p.B, p.T_, p.C};
    const std::int64_t cells = p.B * p.T_ * p.C;
    const auto space = [&](std::int64_t n) {
      arrays.emplace_back(device.space<T>(n), n);
      return arrays.back().first;
    };
    views.emission = {space(cells), frames};
    views.transition = {space(p.slices() * p.C * p.C), {p.slices(), p.C, p.C}};
    views.duration = {space(p.K * p.C), {p.K, p.C}};
    views.initial = {space(p.C), {p.C}};
    views.final = {space(p.C), {p.C}};
    views.start = {space(cells), frames};
    views.end = {space(cells), frames};
  }
};

template <class T>
Results device_loss(const runtime::DeviceAccess& gpu, CudaEngine& engine, const Problem<T>& p,
                    const Segmentations& gold, const std::vector<double>& weights) {
  DeviceArrays device(gpu);
  const DeviceGradients<T> g(p, device);
  LossResult out;
  out.loss = {device.space<double>(p.B), {p.B}};
  out.log_partition = {device.space<double>(p.B), {p.B}};
  out.score = {device.space<double>(p.B), {p.B}};
  out.status = {device.space<RowStatus>(p.B), {p.B}};
  View<const double, 1> w;
  if (!weights.empty()) w = View<const double, 1>(device.copy(weights), {p.B});
  engine.loss(on_device(p, device), on_device(gold, device), out, g.views, w);
  engine.check();
  Results r;
  r.loss = device.read(out.loss.data(), p.B);
  r.log_partition = device.read(out.log_partition.data(), p.B);
  r.score = device.read(out.score.data(), p.B);
  r.status = device.read(out.status.data(), p.B);
  for (const auto& [array, n] : g.arrays)
    for (const T x : device.read(array, n)) r.gradients.push_back(static_cast<double>(x));
  return r;
}

template <class T>
Results host_loss(const Problem<T>& p, const Segmentations& gold,
                  const std::vector<double>& weights, Algorithm algorithm) {
  Engine engine(1, {algorithm});
  OwnedGradients<T> g(p);
  Results r;
  const auto n = static_cast<std::size_t>(p.B);
  r.loss.resize(n), r.log_partition.resize(n), r.score.resize(n), r.status.resize(n);
  LossResult out;
  out.loss = r.loss, out.log_partition = r.log_partition, out.score = r.score;
  out.status = View<RowStatus, 1>(r.status.data(), {p.B});
  View<const double, 1> w;
  if (!weights.empty()) w = weights;
  engine.loss(p.potentials(), gold.view(), out, g.views(), w);
  for (const T x : g.flat()) r.gradients.push_back(x);
  return r;
}

/// Everything a viterbi call gives, on the host.
struct BestPaths {
  Segmentations path;
  std::vector<double> score;
  std::vector<RowStatus> status;
};

template <class T>
BestPaths device_best(const runtime::DeviceAccess& gpu, CudaEngine& engine, const Problem<T>& p) {
  DeviceArrays device(gpu);
  const std::int64_t most = p.B * p.T_;
  const DeviceSegmentations best{{device.space<std::int64_t>(p.B + 1), {p.B + 1}},
                                 {device.space<std::int32_t>(most), {most}},
                                 {device.space<std::int32_t>(most), {most}},
                                 {device.space<std::int32_t>(most), {most}}};
  ViterbiResult result;
  result.score = {device.space<double>(p.B), {p.B}};
  result.status = {device.space<RowStatus>(p.B), {p.B}};
  engine.viterbi(on_device(p, device), best, result);
  engine.check();
  return {on_host(best, device), device.read(result.score.data(), p.B),
          device.read(result.status.data(), p.B)};
}

template <class T>
BestPaths host_best(const Problem<T>& p) {
  BestPaths best;
  best.score.resize(static_cast<std::size_t>(p.B));
  best.status.resize(static_cast<std::size_t>(p.B));
  ViterbiResult result;
  result.score = best.score;
  result.status = View<RowStatus, 1>(best.status.data(), {p.B});
  Engine(1).viterbi(p.potentials(), best.path, result);
  return best;
}

}  // namespace segfuse::semicrf::testing
