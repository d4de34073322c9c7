// One long row of the semi-Markov CRF over several CUDA devices: log Z alone, and with all
// gradients, on 1 to all of the devices, scores in place. `same` says whether the results have the
// bits of one device; reference_ms is the time of one. Prints one JSON list of rows, or an empty
// one where there is no device.
//   segfuse_bench_semicrf_split [T [K [C]]]

#include <fmt/core.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <memory>
#include <nlohmann/json.hpp>
#include <vector>

#include "runtime/open_device.h"
#include "semicrf/cuda/over_device.h"
#include "unit/gpu/device_problem.h"

namespace {

using namespace segfuse;
using namespace segfuse::semicrf::testing;
using semicrf::FrameSpan;
using semicrf::Gradients;
using semicrf::Potentials;
using semicrf::SplitCudaEngine;

/// The row on some devices, and what calls wrote.
class Row {
 public:
  Row(const Problem<float>& p, int devices)
      : shape_{p.T_, p.C, p.K, false},
        engine_(semicrf::OverDevice::split(accesses(devices))),
        shares_(engine_.shares(shape_)) {
    for (std::size_t i = 0; i < shares_.size(); ++i) {
      DeviceArrays& device = *arrays_.emplace_back(
          std::make_unique<DeviceArrays>(runtime::access_cuda(static_cast<int>(i))));
      const FrameSpan& reads = shares_[i].reads;
      Potentials<float>& part = parts_.emplace_back();
      const std::vector<float> frames(p.emission.begin() + reads.begin * p.C,
                                      p.emission.begin() + reads.end * p.C);
      part.emission = {device.copy(frames), {1, reads.end - reads.begin, p.C}};
      part.transition = {device.copy(p.transition), {1, p.C, p.C}};
      part.duration = {device.copy(p.duration), {p.K, p.C}};
      const std::int64_t own = shares_[i].writes.end - shares_[i].writes.begin;
      Gradients<float>& out = gradients_.emplace_back();
      out.emission = {device.space<float>(own * p.C), {1, own, p.C}};
      if (i != 0) continue;
      out.transition = {device.space<float>(p.C * p.C), {1, p.C, p.C}};
      out.duration = {device.space<float>(p.K * p.C), {p.K, p.C}};
    }
  }

  SplitCudaEngine::Partition call(bool gradients) {
    return engine_.log_partition(shape_, parts_,
                                 gradients ? gradients_ : std::vector<Gradients<float>>{});
  }

  std::vector<float> written() {
    std::vector<float> all;
    const auto add = [&](std::size_t i, const float* from, std::int64_t n) {
      const std::vector<float> own = arrays_[i]->read(from, n);
      all.insert(all.end(), own.begin(), own.end());
    };
    const std::int64_t classes = shape_.classes;
    add(0, gradients_[0].transition.data(), classes * classes);
    add(0, gradients_[0].duration.data(), shape_.max_duration * classes);
    for (std::size_t i = 0; i < arrays_.size(); ++i)
      add(i, gradients_[i].emission.data(), gradients_[i].emission.extent(1) * classes);
    return all;
  }

 private:
  static std::vector<runtime::DeviceAccess> accesses(int n) {
    std::vector<runtime::DeviceAccess> out;
    for (int i = 0; i < n; ++i) out.push_back(runtime::access_cuda(i));
    return out;
  }

  semicrf::RowShape shape_;
  SplitCudaEngine engine_;
  std::vector<SplitCudaEngine::Share> shares_;
  std::vector<std::unique_ptr<DeviceArrays>> arrays_;
  std::vector<Potentials<float>> parts_;
  std::vector<Gradients<float>> gradients_;
};

double milliseconds(Row& row, bool gradients) {
  std::vector<double> ms;
  for (int i = 0; i < 7; ++i) {
    const auto begin = std::chrono::steady_clock::now();
    row.call(gradients);
    ms.push_back(1e3 *
                 std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  const std::int64_t frames = argc > 1 ? std::atoll(argv[1]) : 10'000'000;
  const std::int64_t longest = argc > 2 ? std::atoll(argv[2]) : 200;
  const std::int64_t classes = argc > 3 ? std::atoll(argv[3]) : 8;
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  bool different = false;
  const int present = runtime::cuda_device_count();
  if (present > 0) {
    Rng rng(5);
    Problem<float> p = random_problem<float>(1, frames, longest, classes, false, gaussian, rng);
    p.with_start = p.with_end = p.with_initial = p.with_final = false;
    double first = 0.0;
    std::vector<float> bits;
    std::array<double, 2> alone{};
    for (int devices = 1; devices <= present; devices *= 2) {
      Row row(p, devices);
      const SplitCudaEngine::Partition found = row.call(true);
      if (devices == 1) first = found.log_partition, bits = row.written();
      const bool same = found.log_partition == first && row.written() == bits;
      different = different || !same;
      for (const bool gradients : {false, true}) {
        const double ms = milliseconds(row, gradients);
        if (devices == 1) alone[gradients ? 1 : 0] = ms;
        rows.push_back(
            {{"name", fmt::format("{}_T{}_K{}_C{}_devices{}", gradients ? "loss_grad" : "forward",
                                  frames, longest, classes, devices)},
             {"device", runtime::access_cuda(0).device->name()},
             {"threads", 1},
             {"ms", ms},
             {"error", std::abs(found.log_partition - first) / std::abs(first)},
             {"reference_ms", alone[gradients ? 1 : 0]},
             {"split", found.split},
             {"same", same}});
      }
    }
  }
  fmt::print("{}\n", rows.dump(1));
  return different ? 1 : 0;
}
