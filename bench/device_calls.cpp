// What a call of a device costs the host: the CPU, the CPU behind the race checker, and a CUDA
// device where there is one. Prints one JSON list of rows, times for a thousand calls by each
// thread on a stream of its own; reference_ms is that of a thousand locks of a mutex.
//   segfuse_bench_devices [threads]

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <limits>
#include <mutex>
#include <nlohmann/json.hpp>
#include <thread>
#include <vector>

#include "runtime/check/race_checker.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/kernels.h"

namespace {

using namespace segfuse;
using runtime::Device;

constexpr int kCalls = 1000;
constexpr int kRounds = 20;
constexpr std::size_t kMiB = std::size_t{1} << 20;

double ms_of(const std::function<void()>& body) {
  const auto start = std::chrono::steady_clock::now();
  body();
  return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - start)
      .count();
}

/// What a thread works with.
struct Lane {
  explicit Lane(Device& d, std::byte* at)
      : device(d), stream(d.create_stream()), event(d.create_event()), memory(at) {}
  ~Lane() {
    device.synchronize(stream);
    device.destroy_event(event);
    device.destroy_stream(stream);
  }
  Lane(const Lane&) = delete;
  Lane& operator=(const Lane&) = delete;
  Device& device;
  runtime::StreamHandle stream;
  runtime::EventHandle event;
  std::byte* memory;
};

struct Case {
  const char* name;
  std::function<void(Lane&)> call;
};

const std::vector<Case>& cases() {
  static const std::vector<Case> all = {
      {"fill", [](Lane& l) { l.device.fill(l.stream, l.memory, 1, 64); }},
      {"record", [](Lane& l) { l.device.record(l.stream, l.event); }},
      {"wait", [](Lane& l) { l.device.wait(l.stream, l.event); }},
      {"query", [](Lane& l) { l.device.query(l.event); }},
      {"create and destroy an event",
       [](Lane& l) { l.device.destroy_event(l.device.create_event()); }},
      {"fill and wait for it", [](Lane& l) {
         l.device.fill(l.stream, l.memory, 1, 64);
         l.device.synchronize(l.stream);
       }}};
  return all;
}

/// The slowest thread's time, in the best of the rounds.
double measure(std::vector<std::unique_ptr<Lane>>& lanes, const Case& what) {
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round) {
    std::vector<double> times(lanes.size());
    std::vector<std::thread> threads;
    for (std::size_t t = 0; t < lanes.size(); ++t)
      threads.emplace_back([&, t] {
        times[t] = ms_of([&] {
          for (int i = 0; i < kCalls; ++i) what.call(*lanes[t]);
        });
      });
    for (std::thread& thread : threads) thread.join();
    for (const auto& lane : lanes) lane->device.synchronize(lane->stream);
    best = std::min(best, *std::ranges::max_element(times));
  }
  return best;
}

double reference_ms() {
  std::mutex mutex;
  double best = std::numeric_limits<double>::infinity();
  for (int round = 0; round < kRounds; ++round)
    best = std::min(best, ms_of([&] {
                      for (int i = 0; i < kCalls; ++i) const std::lock_guard lock(mutex);
                    }));
  return best;
}

void add_row(nlohmann::json& rows, const std::string& name, const std::string& device, int threads,
             double ms) {
  static const double reference = reference_ms();
  rows.push_back({{"name", name},
                  {"device", device},
                  {"threads", threads},
                  {"ms", ms},
                  {"us_per_call", ms * 1e3 / kCalls},
                  {"error", 0.0},
                  {"reference_ms", reference}});
}

/// A thousand times mapping and unmapping a GiB in pieces, by their size.
void measure_mapping(Device& device, const std::string& name, std::size_t piece,
                     nlohmann::json& rows) {
  piece = (piece + device.granule() - 1) / device.granule() * device.granule();
  const std::size_t pieces = 1024 * kMiB / piece;
  std::byte* const at = device.reserve(pieces * piece);
  double map = 0, unmap = 0;
  map = ms_of([&] {
    for (std::size_t i = 0; i < pieces; ++i) device.map(at + i * piece, piece);
  });
  unmap = ms_of([&] {
    for (std::size_t i = 0; i < pieces; ++i) device.unmap(at + i * piece, piece);
  });
  device.unreserve(at, pieces * piece);
  const std::string size = std::to_string(piece / kMiB) + " MiB";
  const double per_thousand = static_cast<double>(kCalls) / static_cast<double>(pieces);
  add_row(rows, "map " + size, name, 1, map * per_thousand);
  add_row(rows, "unmap " + size, name, 1, unmap * per_thousand);
}

void measure_device(Device& device, const std::string& name, int threads, nlohmann::json& rows) {
  std::byte* const memory = device.reserve(device.granule());
  device.map(memory, device.granule());
  {
    std::vector<std::unique_ptr<Lane>> lanes;
    for (int t = 0; t < threads; ++t)
      lanes.push_back(std::make_unique<Lane>(device, memory + 256 * t));
    for (const Case& what : cases()) add_row(rows, what.name, name, threads, measure(lanes, what));
  }
  device.unmap(memory, device.granule());
  device.unreserve(memory, device.granule());
  if (threads == 1)
    for (const std::size_t piece : {2 * kMiB, 20 * kMiB, 128 * kMiB})
      measure_mapping(device, name, piece, rows);
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::max(1, std::atoi(argv[1])) : 1;
  nlohmann::json rows = nlohmann::json::array();
  runtime::CpuDevice cpu;
  measure_device(cpu, "cpu", threads, rows);
  runtime::RaceChecker checked(cpu);
  measure_device(checked, "cpu, checked", threads, rows);
  if (runtime::cuda_device_count() != 0) {
    for (const std::size_t granule : {2 * kMiB, 20 * kMiB}) {
      const auto cuda = runtime::open_cuda_device(0, {.granule = granule});
      const std::string name = cuda->name() + ", granules of " + std::to_string(granule / kMiB);
      measure_device(*cuda, name, threads, rows);
    }
  }
  std::cout << rows.dump(1) << "\n";
  return 0;
}
