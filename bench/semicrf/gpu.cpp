// The semi-Markov CRF on a CUDA GPU: forward, loss with all gradients, Viterbi, at the sizes of the
// design's targets; errors against the CPU engine's double arithmetic. Prints one JSON list of
// rows, or an empty one where there is no device. reference_ms is the plain recursion on one core
// of the host.
//   segfuse_bench_semicrf_gpu [lanes per class [name of one size [whole, alone or cut [warm-up]]]]
// "whole" does not cut passes in time, "alone" gives every pass one block.

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include "runtime/open_device.h"
#include "semicrf/cuda/over_device.h"
#include "unit/gpu/device_problem.h"

namespace {

using namespace segfuse;
using namespace segfuse::semicrf::testing;
using semicrf::CudaEngine;
using semicrf::View;

struct Sizes {
  std::int64_t b, t, k, c;
  int runs;
  bool by_duration = false;  ///< transitions (K, C, C)
  std::string name() const {
    return fmt::format("B{}_T{}_K{}_C{}{}", b, t, k, c, by_duration ? "_by_duration" : "");
  }
};

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

/// Milliseconds a call when calls follow each other without waiting: the device's time, launches
/// hidden. Median of five such series.
double time(const runtime::DeviceAccess& gpu, int calls, const std::function<void()>& call) {
  std::vector<double> ms;
  for (int series = 0; series < 5; ++series) {
    gpu.device->synchronize(gpu.home);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    gpu.device->synchronize(gpu.home);
    ms.push_back(1e3 *
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count() /
                 calls);
  }
  return median(ms);
}

double largest_difference(const std::vector<double>& a, const std::vector<double>& b) {
  double worst = 0;
  for (std::size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(a[i] - b[i]));
  return std::isfinite(worst) ? worst : INFINITY;
}

Problem<float> random_floats(const Sizes& n) {
  Rng rng(static_cast<std::uint64_t>(n.t + n.c));
  Problem<float> p = random_problem<float>(n.b, n.t, n.k, n.c, n.by_duration, gaussian, rng);
  p.with_start = p.with_end = false;
  return p;
}

/// Milliseconds of the plain O(T K C^2) recursion on one core of the host, from the first frames of
/// one row.
double plain_ms(const Sizes& n, const std::string& what) {
  Sizes part = n;
  part.b = 1;
  part.t = std::min<std::int64_t>(n.t, 200);
  const Problem<float> p = random_floats(part);
  Rng rng(4);
  const semicrf::Segmentations gold = random_gold(p, rng);
  semicrf::Engine engine(1, {semicrf::Algorithm::kReference});
  OwnedGradients<float> g(p);
  std::vector<double> values(1);
  semicrf::LossResult loss;
  loss.loss = values;
  semicrf::Segmentations best;
  const auto begin = std::chrono::steady_clock::now();
  if (what == "forward")
    engine.log_partition<float>(p.potentials(), {View<double, 1>(values), {}});
  else if (what == "loss_grad")
    engine.loss(p.potentials(), gold, loss, g.views());
  else
    engine.viterbi(p.potentials(), best);
  const std::chrono::duration<double> seconds = std::chrono::steady_clock::now() - begin;
  return 1e3 * seconds.count() * static_cast<double>(n.b * n.t) / static_cast<double>(part.t);
}

nlohmann::ordered_json row(const Sizes& n, const std::string& what, double ms, double error,
                           const std::string& device) {
  return {{"name", what + "_" + n.name()},
          {"device", device},
          {"threads", 1},
          {"ms", ms},
          {"us_per_step", 1e3 * ms / static_cast<double>(n.t)},
          {"error", error},
          {"reference_ms", plain_ms(n, what)}};
}

/// Share of the CPU engine's segments that the device did not find.
double path_error(const semicrf::Segmentations& mine, const semicrf::Segmentations& host) {
  if (mine == host) return 0.0;
  double missing = 0;
  std::set<std::array<std::int64_t, 4>> found;
  for (int which = 0; which < 2; ++which) {
    const semicrf::Segmentations& y = which == 0 ? mine : host;
    for (std::int64_t b = 0; b < y.rows(); ++b)
      for (std::int64_t i = y.row_pointer[b]; i < y.row_pointer[b + 1]; ++i) {
        const std::array<std::int64_t, 4> segment{b, y.start[i], y.duration[i], y.label[i]};
        if (which == 0)
          found.insert(segment);
        else
          missing += found.contains(segment) ? 0.0 : 1.0;
      }
  }
  return missing / static_cast<double>(host.segments());
}

void measure(const runtime::DeviceAccess& gpu, const Sizes& n, const semicrf::CudaOptions& options,
             nlohmann::ordered_json& rows) {
  const Problem<float> p = random_floats(n);
  Rng rng(3);
  const semicrf::Segmentations gold = random_gold(p, rng);
  CudaEngine engine = semicrf::OverDevice::make<CudaEngine>(gpu, options);
  const Results mine = device_loss(gpu, engine, p, gold, {});
  const Results reference = host_loss(p, gold, {}, semicrf::Algorithm::kFast);
  double forward_error = 0;
  for (std::size_t b = 0; b < mine.loss.size(); ++b)
    forward_error =
        std::max(forward_error, relative(mine.log_partition[b], reference.log_partition[b]));
  // Counts of shared scores grow with the number of frames, and float keeps 24 bits of them.
  const double gradient_error = largest_difference(mine.gradients, reference.gradients) /
                                std::max<double>(1.0, static_cast<double>(n.b * n.t));

  const double decode_error = path_error(device_best(gpu, engine, p).path, host_best(p).path);

  DeviceArrays device(gpu);
  const semicrf::Potentials<float> potentials = on_device(p, device);
  const semicrf::SegmentationsView segments = on_device(gold, device);
  DeviceGradients<float> g(p, device);
  g.views.start = {};
  g.views.end = {};
  const View<double, 1> values(device.space<double>(n.b), {n.b});
  semicrf::LossResult loss;
  loss.loss = values;
  const semicrf::PartitionResult partition{values, {}};
  const std::int64_t most = n.b * n.t;
  const semicrf::DeviceSegmentations best{{device.space<std::int64_t>(n.b + 1), {n.b + 1}},
                                          {device.space<std::int32_t>(most), {most}},
                                          {device.space<std::int32_t>(most), {most}},
                                          {device.space<std::int32_t>(most), {most}}};
  const auto forward = [&] { engine.log_partition<float>(potentials, partition); };
  const auto both = [&] { engine.loss(potentials, segments, loss, g.views); };
  const auto decode = [&] { engine.viterbi(potentials, best); };
  for (int i = 0; i < 2; ++i) forward(), both(), decode();
  engine.check();
  rows.push_back(row(n, "forward", time(gpu, n.runs, forward), forward_error, gpu.device->name()));
  rows.push_back(row(n, "loss_grad", time(gpu, n.runs, both),
                     std::max(forward_error, gradient_error), gpu.device->name()));
  rows.push_back(row(n, "viterbi", time(gpu, std::max(1, n.runs / 4), decode), decode_error,
                     gpu.device->name()));
}

}  // namespace

int main(int argc, char** argv) {
  semicrf::CudaOptions options;
  options.lanes_per_class = argc > 1 ? std::atoi(argv[1]) : 0;
  const std::string without = argc > 3 ? argv[3] : "";
  options.chunked = without != "whole";
  options.teams = without != "alone";
  options.warm_up = argc > 4 ? std::atoi(argv[4]) : 0;
  const std::string only = argc > 2 ? argv[2] : "";
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (runtime::cuda_device_count() > 0) {
    const runtime::DeviceAccess gpu = runtime::access_cuda(0);
    for (const Sizes& n :
         {Sizes{32, 1000, 30, 39, 40}, Sizes{64, 2000, 50, 64, 10}, Sizes{8, 10000, 200, 8, 4},
          Sizes{1, 100000, 100, 24, 4}, Sizes{8, 500, 30, 39, 4, true}, Sizes{1, 2000, 4, 512, 1},
          Sizes{1, 3000, 4096, 24, 1},
          // Just beyond what registers hold, and far beyond.
          Sizes{16, 2000, 40, 70, 8}, Sizes{16, 2000, 40, 128, 8}, Sizes{4, 2000, 40, 200, 4},
          Sizes{2, 4000, 64, 100, 4}, Sizes{8, 10000, 500, 11, 4}, Sizes{4, 3000, 1000, 20, 4},
          // The ends of what registers hold, and calls of little work.
          Sizes{16, 2000, 40, 33, 8}, Sizes{16, 2000, 12, 128, 8}, Sizes{32, 1000, 1, 100, 8},
          Sizes{4, 8000, 1000, 8, 4}, Sizes{512, 200, 10, 9, 20}, Sizes{128, 256, 20, 20, 20}})
      if (only.empty() || only == n.name()) measure(gpu, n, options, rows);
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
