#pragma once
// An Inference of the tests that runs on a GPU: as device_engine.h, for the tests of
// semicrf_tools.h.

#include "semicrf/cuda/over_device.h"
#include "unit/gpu/device_engine.h"

namespace segfuse::semicrf::testing {

inline Scope carried(const Scope& scope, Carrier& carry) {
  const Constraints& x = scope.constraints;
  return {{carry(x.allowed), carry(x.transition), carry(x.min_duration), carry(x.max_duration),
           carry(x.label), carry(x.boundary)},
          carry(scope.tail)};
}

template <class T>
Posteriors<T> carried(const Posteriors<T>& r, Carrier& carry) {
  Posteriors<T> out;
  out.label = carry(r.label);
  out.start = carry(r.start);
  out.end = carry(r.end);
  out.boundary = carry(r.boundary);
  out.duration = carry(r.duration);
  out.entropy = carry(r.entropy);
  out.log_partition = carry(r.log_partition);
  out.status = carry(r.status);
  return out;
}

class Inference {
 public:
  explicit Inference(int = 0) {}

  template <class T>
  void log_partition(const Potentials<T>& p, const Scope& scope, const PartitionResult& r,
                     const Gradients<T>& g = {}, const View<double, 1>& tail_gradient = {},
                     const View<const double, 1>& weights = {}) {
    run([&](CudaInference& device, Carrier& carry) {
      device.log_partition<T>(carried(p, carry), carried(scope, carry),
                              {carry(r.log_partition), carry(r.status)}, carried(g, carry),
                              carry(tail_gradient), carry(weights));
    });
  }

  template <class T>
  void partial_loss(const Potentials<T>& p, const Scope& scope, const LossResult& r,
                    const Gradients<T>& g = {}, const View<double, 1>& tail_gradient = {},
                    const View<const double, 1>& weights = {}) {
    run([&](CudaInference& device, Carrier& carry) {
      device.partial_loss<T>(
          carried(p, carry), carried(scope, carry),
          {carry(r.loss), carry(r.log_partition), carry(r.score), carry(r.status)},
          carried(g, carry), carry(tail_gradient), carry(weights));
    });
  }

  template <class T>
  void posteriors(const Potentials<T>& p, const Scope& scope, const Posteriors<T>& r) {
    run([&](CudaInference& device, Carrier& carry) {
      device.posteriors<T>(carried(p, carry), carried(scope, carry), carried(r, carry));
    });
  }

  template <class T>
  void sample(const Potentials<T>& p, const Scope& scope, std::int64_t n, std::uint64_t seed,
              SegmentationLists& drawn, std::int64_t first_row = 0) {
    const std::int64_t room = n * p.emission.extent(0) * p.emission.extent(1);
    fetch_lists(p.emission.extent(0), n, room, drawn,
                [&](CudaInference& device, Carrier& carry, const DeviceSegmentationLists& out) {
                  device.sample<T>(carried(p, carry), carried(scope, carry), n, seed, out,
                                   first_row);
                });
  }

  template <class T>
  void k_best(const Potentials<T>& p, const Scope& scope, std::int64_t n, SegmentationLists& best) {
    const std::int64_t rows = p.emission.extent(0);
    const std::int64_t room = rows * p.emission.extent(1) * std::min<std::int64_t>(n, 4096);
    fetch_lists(rows, std::max<std::int64_t>(n, 0), room, best,
                [&](CudaInference& device, Carrier& carry, const DeviceSegmentationLists& out) {
                  device.k_best<T>(carried(p, carry), carried(scope, carry), n, out);
                });
  }

  template <class T>
  void cross_entropy(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& result,
                     const View<RowStatus, 1>& status = {}) {
    run([&](CudaInference& device, Carrier& carry) {
      device.cross_entropy<T>(carried(p, carry), carried(q, carry), carry(result), carry(status));
    });
  }
  template <class T>
  void kl(const Potentials<T>& p, const Potentials<T>& q, const View<double, 1>& result,
          const View<RowStatus, 1>& status = {}) {
    run([&](CudaInference& device, Carrier& carry) {
      device.kl<T>(carried(p, carry), carried(q, carry), carry(result), carry(status));
    });
  }

  template <class T>
  void boundary_within(const Potentials<T>& p, const Scope& scope, std::int64_t tolerance,
                       const View<T, 2>& probability) {
    run([&](CudaInference& device, Carrier& carry) {
      device.boundary_within<T>(carried(p, carry), carried(scope, carry), tolerance,
                                carry(probability));
    });
  }
  template <class T>
  void expected_durations(const Potentials<T>& p, const Scope& scope, const View<T, 2>& counts) {
    run([&](CudaInference& device, Carrier& carry) {
      device.expected_durations<T>(carried(p, carry), carried(scope, carry), carry(counts));
    });
  }
  template <class T>
  void max_marginal(const Potentials<T>& p, const Scope& scope, const View<std::int32_t, 2>& labels,
                    std::int32_t ignore = -100) {
    run([&](CudaInference& device, Carrier& carry) {
      device.max_marginal<T>(carried(p, carry), carried(scope, carry), carry(labels), ignore);
    });
  }

  /// Not on the device.
  template <class T>
  void minimum_risk(const Potentials<T>& p, const Scope& scope, std::int64_t tolerance,
                    Segmentations& best, const View<double, 1>& f1 = {}) {
    semicrf::Inference(1).minimum_risk(p, scope, tolerance, best, f1);
  }

 private:
  static void run(const std::function<void(CudaInference&, Carrier&)>& call) {
    run_on_device<CudaInference>(call);
  }
  /// Lists in arrays of the device, and packed as the CPU has them.
  static void fetch_lists(
      std::int64_t rows, std::int64_t n, std::int64_t room, SegmentationLists& out,
      const std::function<void(CudaInference&, Carrier&, const DeviceSegmentationLists&)>& call) {
    Segmentations& y = out.segmentations;
    out.list_pointer.assign(static_cast<std::size_t>(rows) + 1, -1);
    y.row_pointer.assign(static_cast<std::size_t>(rows * n) + 1, -1);
    for (std::vector<std::int32_t>* v : {&y.start, &y.duration, &y.label})
      v->assign(static_cast<std::size_t>(room), -1);
    out.score.assign(static_cast<std::size_t>(rows * n), -777.0);
    run([&](CudaInference& device, Carrier& carry) {
      call(device, carry,
           {carry(View<std::int64_t, 1>(out.list_pointer)),
            carry(View<std::int64_t, 1>(y.row_pointer)), carry(View<std::int32_t, 1>(y.start)),
            carry(View<std::int32_t, 1>(y.duration)), carry(View<std::int32_t, 1>(y.label)),
            carry(View<double, 1>(out.score))});
    });
    const auto lists = static_cast<std::size_t>(out.list_pointer.back());
    out.score.resize(lists);
    y.row_pointer.resize(lists + 1);
    for (std::vector<std::int32_t>* v : {&y.start, &y.duration, &y.label})
      v->resize(static_cast<std::size_t>(y.row_pointer.back()));
  }
};

class OnlineDecoder {
 public:
  template <class T>
  explicit OnlineDecoder(const Potentials<T>& shared, const OnlineOptions& options = {},
                         const View<const double, 1>& tail = {}) {
    Potentials<T> p;
    Carrier carry(test_gpu());
    p.transition = carry(shared.transition);
    p.duration = carry(shared.duration);
    p.initial = carry(shared.initial);
    p.final = carry(shared.final);
    device_ = std::make_unique<CudaOnlineDecoder>(
        OverDevice::online(test_gpu(), p, options, carry(tail)));
  }

  template <class T>
  void push(const View<const T, 2>& emission, Segmentations& decided,
            const View<const T, 2>& start = {}, const View<const T, 2>& end = {}) {
    Carrier carry(test_gpu());
    device_->push<T>(carry(emission), carry(start), carry(end));
    device_->check();
    device_->take(decided);
  }
  RowStatus finish(Segmentations& decided) { return device_->finish(decided); }
  std::int64_t frames() const { return device_->frames(); }
  std::int64_t decided_frames() const { return device_->decided_frames(); }
  double log_partition() const { return device_->log_partition(); }
  double best_score() const { return device_->best_score(); }

 private:
  std::unique_ptr<CudaOnlineDecoder> device_;
};

}  // namespace segfuse::semicrf::testing
