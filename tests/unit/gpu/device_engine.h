#pragma once
// An Engine of the tests that runs on a GPU: takes the same views of host memory, carries what they
// cover to the device, and the outputs back. The tests of the CPU engine are compiled against it as
// they are (tests/CMakeLists.txt). SEGFUSE_TEST_DEVICE=cuda takes a CUDA device, else the emulator.

#include <algorithm>
#include <cstdlib>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/open_device.h"
#include "semicrf/cuda/over_device.h"
#include "support/emulator/gpu_emulator.h"

namespace segfuse::semicrf::testing {

inline runtime::DeviceAccess test_gpu() {
  const char* device = std::getenv("SEGFUSE_TEST_DEVICE");
  static const runtime::DeviceAccess gpu = device != nullptr && std::string(device) == "cuda"
                                               ? runtime::access_cuda(0)
                                               : segfuse::testing::make_gpu_emulator();
  return gpu;
}

/// Copies of the memory that views cover, with the same strides.
class Carrier {
 public:
  explicit Carrier(runtime::DeviceAccess gpu) : gpu_(std::move(gpu)) {}
  ~Carrier() {
    for (const Copy& copy : copies_) gpu_.memory->release(gpu_.home, copy.device);
  }
  Carrier(const Carrier&) = delete;
  Carrier& operator=(const Carrier&) = delete;

  template <class T, int N>
  View<T, N> operator()(const View<T, N>& view) {
    if (view.empty()) return view;
    std::int64_t low = 0;
    std::int64_t high = 0;
    for (int axis = 0; axis < N; ++axis) {
      if (view.extent(axis) == 0) return View<T, N>(anything<T>(), view.extents(), view.strides());
      const std::int64_t reach = (view.extent(axis) - 1) * view.stride(axis);
      (reach < 0 ? low : high) += reach;
    }
    const auto bytes = static_cast<std::size_t>(high - low + 1) * sizeof(T);
    using Plain = std::remove_const_t<T>;
    auto* host = const_cast<Plain*>(view.data()) + low;
    std::byte* device = gpu_.memory->allocate(gpu_.home, bytes);
    copies_.push_back({device, std::is_const_v<T> ? nullptr : host, bytes});
    gpu_.device->copy(gpu_.home, device, host, bytes);
    gpu_.device->synchronize(gpu_.home);
    return View<T, N>(reinterpret_cast<Plain*>(device) - low, view.extents(), view.strides());
  }

  /// Outputs back to the host.
  void fetch() {
    for (const Copy& copy : copies_)
      if (copy.host != nullptr) gpu_.device->read(gpu_.home, copy.host, copy.device, copy.bytes);
  }

 private:
  struct Copy {
    std::byte* device;
    void* host;  ///< null: an input
    std::size_t bytes;
  };
  template <class T>
  T* anything() {
    std::byte* device = gpu_.memory->allocate(gpu_.home, sizeof(T));
    copies_.push_back({device, nullptr, sizeof(T)});
    return reinterpret_cast<T*>(device);
  }
  runtime::DeviceAccess gpu_;
  std::vector<Copy> copies_;
};

template <class T>
Potentials<T> carried(const Potentials<T>& p, Carrier& carry) {
  Potentials<T> q = p;
  q.emission = carry(p.emission);
  q.transition = carry(p.transition);
  q.duration = carry(p.duration);
  q.initial = carry(p.initial);
  q.final = carry(p.final);
  q.start = carry(p.start);
  q.end = carry(p.end);
  if (!p.lengths.wide().empty()) q.lengths = carry(p.lengths.wide());
  if (!p.lengths.narrow().empty()) q.lengths = carry(p.lengths.narrow());
  return q;
}
template <class T>
Gradients<T> carried(const Gradients<T>& g, Carrier& carry) {
  return {carry(g.emission), carry(g.transition), carry(g.duration), carry(g.initial),
          carry(g.final),    carry(g.start),      carry(g.end)};
}
inline SegmentationsView carried(const SegmentationsView& y, Carrier& carry) {
  return {carry(y.row_pointer), carry(y.start), carry(y.duration), carry(y.label)};
}

/// Calls with an object of the device, and what it wrote carried back. The emulator has passes in
/// registers of a few shapes only; others go through the log domain.
template <class OnDevice>
void run_on_device(const std::function<void(OnDevice&, Carrier&)>& call) {
  const runtime::DeviceAccess gpu = test_gpu();
  for (const Algorithm algorithm : {Algorithm::kFast, Algorithm::kReference}) {
    CudaOptions options;
    options.algorithm = algorithm;
    OnDevice device = OverDevice::make<OnDevice>(gpu, options);
    Carrier carry(gpu);
    try {
      call(device, carry);
    } catch (const std::logic_error&) {
      if (algorithm == Algorithm::kReference) throw;
      continue;
    }
    device.check();
    carry.fetch();
    return;
  }
}

class Engine {
 public:
  explicit Engine(int threads = 0, EngineOptions options = {})
      : options_(options), host_(threads, options) {}

  template <class T>
  void log_partition(const Potentials<T>& p, const PartitionResult& r, const Gradients<T>& g = {},
                     const View<const double, 1>& weights = {}) {
    if (for_host()) return host_.log_partition(p, r, g, weights);
    run_on_device<CudaEngine>([&](CudaEngine& engine, Carrier& carry) {
      engine.log_partition<T>(carried(p, carry), {carry(r.log_partition), carry(r.status)},
                              carried(g, carry), carry(weights));
    });
  }

  template <class T>
  void loss(const Potentials<T>& p, const SegmentationsView& gold, const LossResult& r,
            const Gradients<T>& g = {}, const View<const double, 1>& weights = {}) {
    if (for_host()) return host_.loss(p, gold, r, g, weights);
    run_on_device<CudaEngine>([&](CudaEngine& engine, Carrier& carry) {
      engine.loss<T>(carried(p, carry), carried(gold, carry),
                     {carry(r.loss), carry(r.log_partition), carry(r.score), carry(r.status)},
                     carried(g, carry), carry(weights));
    });
  }

  /// The device gives scores with losses.
  template <class T>
  void score(const Potentials<T>& p, const SegmentationsView& y, const View<double, 1>& score) {
    if (for_host()) return host_.score(p, y, score);
    LossResult result;
    result.score = score;
    loss(p, y, result);
  }

  template <class T>
  void posteriors(const Potentials<T>& p, const Posteriors<T>& r) {
    if (for_host()) return host_.posteriors(p, r);
    run_on_device<CudaEngine>([&](CudaEngine& engine, Carrier& carry) {
      Posteriors<T> out;
      out.label = carry(r.label);
      out.start = carry(r.start);
      out.end = carry(r.end);
      out.boundary = carry(r.boundary);
      out.duration = carry(r.duration);
      out.entropy = carry(r.entropy);
      out.log_partition = carry(r.log_partition);
      out.status = carry(r.status);
      engine.posteriors<T>(carried(p, carry), out);
    });
  }

  /// Not on the device.
  template <class T>
  void segment_posteriors(const Potentials<T>& p, const SegmentationsView& segments,
                          const View<double, 1>& probability) {
    host_.segment_posteriors(p, segments, probability);
  }

  template <class T>
  void viterbi(const Potentials<T>& p, Segmentations& best, const ViterbiResult& r = {}) {
    if (for_host()) return host_.viterbi(p, best, r);
    const std::int64_t rows = p.emission.extent(0);
    const std::int64_t most = rows * p.emission.extent(1);
    best.row_pointer.assign(static_cast<std::size_t>(rows) + 1, -1);
    for (std::vector<std::int32_t>* v : {&best.start, &best.duration, &best.label})
      v->assign(static_cast<std::size_t>(most), -1);
    run_on_device<CudaEngine>([&](CudaEngine& engine, Carrier& carry) {
      const DeviceSegmentations out{
          carry(View<std::int64_t, 1>(best.row_pointer)), carry(View<std::int32_t, 1>(best.start)),
          carry(View<std::int32_t, 1>(best.duration)), carry(View<std::int32_t, 1>(best.label))};
      engine.viterbi<T>(carried(p, carry), out, {carry(r.score), carry(r.status)});
    });
    for (std::vector<std::int32_t>* v : {&best.start, &best.duration, &best.label})
      v->resize(static_cast<std::size_t>(best.row_pointer.back()));
  }

 private:
  /// The plain recursion is what the device is compared with.
  bool for_host() const { return options_.algorithm == Algorithm::kReference; }

  EngineOptions options_;
  semicrf::Engine host_;
};

}  // namespace segfuse::semicrf::testing
