// What a frame costs on a CUDA GPU over sizes of the model: log Z, gradients and Viterbi for labels
// from 1 to 512 and segments of up to 1 to 4096 frames. Prints a JSON list of rows, or an empty one
// where there is no device. Each row has hashes of the results, which show whether two builds give
// the same bits.
//   segfuse_bench_semicrf_sweep [check [least C [most C]]]
// "check" compares with the CPU engine.

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <thread>
#include <vector>

#include "base/code/fnv.h"
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
};

Problem<float> random_floats(const Sizes& n) {
  Rng rng(static_cast<std::uint64_t>(n.k + n.c));
  Problem<float> p = random_problem<float>(n.b, n.t, n.k, n.c, false, gaussian, rng);
  p.with_start = p.with_end = false;
  return p;
}

template <class T>
std::string hash_of(const std::vector<T>& values) {
  return fmt::format(
      "{:016x}", fnv1a({reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T)}));
}

/// Milliseconds a call in a series of calls without waits, least of three series of 20 ms or more.
double time(const runtime::DeviceAccess& gpu, const std::function<void()>& call) {
  double best = 1e9;
  int calls = 1;
  for (int series = 0; series < 4; ++series) {
    gpu.device->synchronize(gpu.home);
    const auto begin = std::chrono::steady_clock::now();
    for (int i = 0; i < calls; ++i) call();
    gpu.device->synchronize(gpu.home);
    const std::chrono::duration<double, std::milli> span = std::chrono::steady_clock::now() - begin;
    if (series > 0) best = std::min(best, span.count() / calls);
    if (series == 0) calls = std::clamp(static_cast<int>(20 / std::max(span.count(), 0.05)), 1, 50);
  }
  return best;
}

/// Errors against the CPU engine, of as many frames as that takes some tenths of a second for.
void compare(const runtime::DeviceAccess& gpu, CudaEngine& engine, Sizes n,
             nlohmann::ordered_json& row) {
  constexpr std::int64_t kProducts = 200'000'000;
  n.b = 2;
  n.t = std::clamp<std::int64_t>(kProducts / (n.b * n.c * (n.c + n.k)), 200, n.t);
  const Problem<float> p = random_floats(n);
  Rng rng(5);
  const semicrf::Segmentations gold = random_gold(p, rng);
  const Results mine = device_loss(gpu, engine, p, gold, {});
  const Results host = host_loss(p, gold, {}, semicrf::Algorithm::kFast);
  double log_z = 0;
  double gradient = 0;
  for (std::size_t b = 0; b < mine.loss.size(); ++b)
    log_z = std::max(log_z, relative(mine.log_partition[b], host.log_partition[b]));
  for (std::size_t i = 0; i < mine.gradients.size(); ++i)
    gradient = std::max(gradient, std::abs(mine.gradients[i] - host.gradients[i]) /
                                      std::max(1.0, std::abs(host.gradients[i])));
  row["frames_compared"] = n.t;
  row["log_z_error"] = log_z;
  row["gradient_error"] = gradient;
  row["same_path"] = device_best(gpu, engine, p).path == host_best(p).path;
}

nlohmann::ordered_json measure(const runtime::DeviceAccess& gpu, const Sizes& n, bool check) {
  const Problem<float> p = random_floats(n);
  Rng rng(3);
  const semicrf::Segmentations gold = random_gold(p, rng);
  CudaEngine engine = semicrf::OverDevice::make<CudaEngine>(gpu);
  nlohmann::ordered_json row{{"B", n.b}, {"T", n.t}, {"K", n.k}, {"C", n.c}};
  const Results mine = device_loss(gpu, engine, p, gold, {});
  const BestPaths best_path = device_best(gpu, engine, p);
  row["log_z"] = hash_of(mine.log_partition);
  row["gradients"] = hash_of(mine.gradients);
  row["path"] = hash_of(best_path.path.start) + hash_of(best_path.path.label);
  if (check) compare(gpu, engine, n, row);
  DeviceArrays device(gpu);
  const semicrf::Potentials<float> potentials = on_device(p, device);
  const semicrf::SegmentationsView segments = on_device(gold, device);
  DeviceGradients<float> g(p, device);
  g.views.start = {};
  g.views.end = {};
  const View<double, 1> values(device.space<double>(n.b), {n.b});
  semicrf::LossResult loss;
  loss.loss = values;
  const std::int64_t most = n.b * n.t;
  const semicrf::DeviceSegmentations best{{device.space<std::int64_t>(n.b + 1), {n.b + 1}},
                                          {device.space<std::int32_t>(most), {most}},
                                          {device.space<std::int32_t>(most), {most}},
                                          {device.space<std::int32_t>(most), {most}}};
  row["log_z_ms"] = time(gpu, [&] { engine.log_partition<float>(potentials, {values, {}}); });
  row["gradients_ms"] = time(gpu, [&] { engine.loss(potentials, segments, loss, g.views); });
  row["viterbi_ms"] = time(gpu, [&] { engine.viterbi(potentials, best); });
  return row;
}

/// Compiles what the sizes need, many programs beside each other.
void compile(const runtime::DeviceAccess& gpu, const std::vector<Sizes>& all) {
  std::atomic<std::size_t> next = 0;
  std::vector<std::thread> threads;
  for (unsigned i = 0; i < std::max(1u, std::thread::hardware_concurrency()); ++i)
    threads.emplace_back([&] {
      for (std::size_t at = next++; at < all.size(); at = next++) {
        const Problem<float> p = random_floats({1, 4, all[at].k, all[at].c});
        CudaEngine engine = semicrf::OverDevice::make<CudaEngine>(gpu);
        DeviceArrays device(gpu);
        const semicrf::Potentials<float> potentials = on_device(p, device);
        engine.log_partition<float>(potentials,
                                    {View<double, 1>(device.space<double>(1), {1}), {}});
        engine.viterbi(potentials, {{device.space<std::int64_t>(2), {2}},
                                    {device.space<std::int32_t>(4), {4}},
                                    {device.space<std::int32_t>(4), {4}},
                                    {device.space<std::int32_t>(4), {4}}});
        gpu.device->synchronize(gpu.home);
      }
    });
  for (std::thread& thread : threads) thread.join();
}

}  // namespace

int main(int argc, char** argv) {
  const bool check = argc > 1 && std::string(argv[1]) == "check";
  const int least = argc > 2 ? std::atoi(argv[2]) : 1;
  const int most = argc > 3 ? std::atoi(argv[3]) : 512;
  std::vector<Sizes> sizes;
  for (const std::int64_t c :
       {1, 8, 20, 24, 48, 64, 70, 72, 80, 96, 100, 112, 128, 160, 200, 256, 320, 384, 512})
    for (const std::int64_t k : {1, 10, 40, 100, 500, 1000, 4096}) {
      if (c < least || c > most || c * k > 150'000) continue;
      if (k <= 100)
        sizes.push_back({16, 2000, k, c});
      else if (c <= 100)
        sizes.push_back({4, k < 4096 ? 8000 : 12000, k, c});
      else if (c == 128 || c == 256)
        sizes.push_back({2, 4000, k, c});
    }
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  if (runtime::cuda_device_count() > 0) {
    const runtime::DeviceAccess gpu = runtime::access_cuda(0);
    compile(gpu, sizes);
    for (const Sizes& n : sizes) {
      rows.push_back(measure(gpu, n, check));
      fmt::print(stderr, "{}\n", rows.back().dump());
    }
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
