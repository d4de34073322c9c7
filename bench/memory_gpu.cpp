// Device memory on a CUDA device: our heap on it beside the driver's own stream-ordered pool.
// Prints one JSON list of rows, or an empty one where there is no device. PyTorch's allocator,
// where python3 has it: bench/memory_peers.py.

#include <fmt/core.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/driver.h"
#include "runtime/executor.h"
#include "runtime/kernels.h"
#include "runtime/memory/heap.h"

namespace {

using namespace segfuse;
using namespace segfuse::runtime;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

struct Latency {
  double median = 0;
  double p99 = 0;
};

/// Of the host, for a pair of calls; means of 64 pairs each.
Latency latency(const std::function<void()>& pair, const std::function<void()>& drain) {
  constexpr int kBatch = 64;
  std::vector<double> times;
  for (int i = 0; i < 1200; ++i) {
    const auto begin = Clock::now();
    for (int j = 0; j < kBatch; ++j) pair();
    const std::chrono::duration<double, std::nano> time = Clock::now() - begin;
    if (i >= 200) times.push_back(time.count() / kBatch);
    drain();
  }
  std::ranges::sort(times);
  return {times[times.size() / 2], times[times.size() * 99 / 100]};
}

/// The driver's pool, keeping what is freed.
class DriverPool {
 public:
  DriverPool(const cuda::Driver& driver, cuda::Stream stream) : driver_(driver), stream_(stream) {
    cuda::MemPoolProps props;
    cuda::check(driver.pool_create(&pool_, &props), "cuMemPoolCreate");
    std::uint64_t most = ~std::uint64_t{0};
    cuda::check(driver.pool_set(pool_, cuda::kReleaseThreshold, &most), "cuMemPoolSetAttribute");
  }
  void pair(std::size_t bytes) {
    cuda::DevicePtr address = 0;
    cuda::check(driver_.pool_allocate(&address, bytes, pool_, stream_), "cuMemAllocFromPoolAsync");
    cuda::check(driver_.free_async(address, stream_), "cuMemFreeAsync");
  }

 private:
  const cuda::Driver& driver_;
  cuda::Stream stream_;
  cuda::MemPool pool_ = nullptr;
};

void measure(Json& rows) {
  const auto device = open_cuda_device(0);
  Timeline timeline;
  Heap heap(*device, timeline);
  Executor executor(timeline);
  const StreamId stream = timeline.create(*device);
  const StreamId other = timeline.create(*device);
  const cuda::Driver& driver = cuda::driver();
  cuda::Device number = 0;
  cuda::Context primary = nullptr;  // the device's
  cuda::check(driver.device_get(&number, 0), "cuDeviceGet");
  cuda::check(driver.primary_context(&primary, number), "cuDevicePrimaryCtxRetain");
  const cuda::CurrentContext current(primary);
  DriverPool pool(driver, timeline.handle(stream).get());
  const auto drain = [&] { timeline.synchronize(stream); };
  for (const std::size_t bytes : {256UL, 65536UL, 1048576UL, 33554432UL}) {
    {
      const Buffer used = heap.allocate(bytes, stream);
      executor.fill(stream, used, 1);
    }
    const Latency ours = latency([&] { (void)heap.allocate(bytes, stream); }, drain);
    const Latency theirs = latency([&] { pool.pair(bytes); }, drain);
    rows.push_back({{"name", fmt::format("pair_{}_live0", bytes)},
                    {"device", device->name()},
                    {"threads", 1},
                    {"ms", ours.median},
                    {"error", 0},
                    {"reference_ms", theirs.median},
                    {"p50_ns", ours.median},
                    {"p99_ns", ours.p99},
                    {"cudaMallocAsync_p50_ns", theirs.median},
                    {"cudaMallocAsync_p99_ns", theirs.p99}});
  }
  // Written on one stream, read on another, dropped, and asked for again.
  const auto handed = [&] {
    const Buffer buffer = heap.allocate(65536, stream);
    executor.fill(stream, buffer, 1);
    const Buffer copy = heap.allocate(65536, other);
    executor.copy(other, copy, 0, buffer, 0, 65536);
  };
  const TimelineCounts before = timeline.counts();
  const Latency foreign = latency(handed, [&] {
    timeline.synchronize(stream);
    timeline.synchronize(other);
  });
  const TimelineCounts after = timeline.counts();
  constexpr double kPairs = 1200.0 * 64;
  rows.push_back(
      {{"name", "handed_to_another_stream"},
       {"device", device->name()},
       {"threads", 1},
       {"p50_ns", foreign.median},
       {"p99_ns", foreign.p99},
       {"records", static_cast<double>(after.records - before.records) / kPairs},
       {"waits", static_cast<double>(after.waits - before.waits) / kPairs},
       {"peak_mib", static_cast<double>(heap.statistics().peak_mapped_bytes) / 1048576}});
}

}  // namespace

int main() {
  Json rows = Json::array();
  if (cuda_device_count() > 0) measure(rows);
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
