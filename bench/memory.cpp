// Device memory: what an allocation costs the host, how threads get in each other's way, and what
// several streams cost in memory and waits. Prints one JSON list of rows.
//   segfuse_bench_memory [threads] [row that begins with]
// The device is a model without memory (src/doctor/memory/model_device.h): its calls cost nothing,
// so times are the heap's own.

#include <fmt/core.h>
#include <sys/resource.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdlib>
#include <functional>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "doctor/memory/replay.h"
#include "doctor/record.h"
#include "memory_model.h"
#include "runtime/memory/size_class.h"

namespace {

using namespace segfuse;
using runtime::Buffer;
using runtime::Heap;
using runtime::StreamId;
using runtime::Timeline;
using Json = nlohmann::ordered_json;
using Clock = std::chrono::steady_clock;

double nanoseconds(Clock::duration time) {
  return std::chrono::duration<double, std::nano>(time).count();
}

/// What a benchmark allocates from: each call hands out, uses in no way, and takes back.
struct Allocators {
  /// A heap whose blocks were used on their stream, so that frees have something to remember.
  class Ours {
   public:
    Ours() : heap_(device_, timeline_) {}
    StreamId stream() { return timeline_.create(device_); }
    Buffer allocate(std::size_t bytes, StreamId on) { return heap_.allocate(bytes, on); }
    void release(Buffer& buffer, std::size_t) { buffer.reset(); }
    void warm(std::size_t bytes, StreamId on, int count) {
      std::vector<Buffer> buffers;
      runtime::Executor executor(timeline_);
      for (int i = 0; i < count; ++i) {
        buffers.push_back(heap_.allocate(bytes, on));
        executor.launch(on, {}, {runtime::writes(buffers.back())});
      }
    }
    std::uint64_t device_calls() const {
      const auto& c = device_.counts();
      return c.launches + c.records + c.waits + c.queries + c.host_waits + c.maps;
    }

   private:
    doctor::ModelDevice device_;
    Timeline timeline_;
    Heap heap_;
  };

  class Malloc {
   public:
    StreamId stream() { return {}; }
    void* allocate(std::size_t bytes, StreamId) { return std::malloc(bytes); }
    void release(void*& memory, std::size_t) { std::free(memory); }
    void warm(std::size_t, StreamId, int) {}
    std::uint64_t device_calls() const { return 0; }
  };

  /// The plain way: one lock, free blocks by size.
  class Locked {
   public:
    StreamId stream() { return {}; }
    std::uintptr_t allocate(std::size_t bytes, StreamId) {
      const std::lock_guard lock(mutex_);
      const auto found = free_.lower_bound(bytes);
      if (found == free_.end()) return next_ += bytes;
      const std::uintptr_t address = found->second;
      free_.erase(found);
      return address;
    }
    void release(std::uintptr_t& address, std::size_t bytes) {
      const std::lock_guard lock(mutex_);
      free_.emplace(bytes, address);
    }
    void warm(std::size_t, StreamId, int) {}
    std::uint64_t device_calls() const { return 0; }

   private:
    std::mutex mutex_;
    std::multimap<std::size_t, std::uintptr_t> free_;
    std::uintptr_t next_ = 4096;
  };
};

template <class T>
void keep(T& value) {
  asm volatile("" : : "r"(&value) : "memory");
}

struct Latency {
  double median = 0;
  double p99 = 0;  ///< of the means of 64 pairs
  std::uint64_t device_calls = 0;
};

/// `live` buffers stay in use; each pair frees the oldest and allocates another.
template <class Allocator>
Latency latency(std::size_t bytes, std::size_t live) {
  constexpr int kBatch = 64;
  constexpr int kBatches = 8000;
  Allocator allocator;
  const StreamId stream = allocator.stream();
  allocator.warm(bytes, stream, static_cast<int>(live) + 1);
  std::vector<decltype(allocator.allocate(bytes, stream))> held;
  for (std::size_t i = 0; i < live; ++i) held.push_back(allocator.allocate(bytes, stream));
  std::size_t oldest = 0;
  const auto batch = [&] {
    const auto begin = Clock::now();
    for (int i = 0; i < kBatch; ++i) {
      auto one = allocator.allocate(bytes, stream);
      keep(one);
      if (live > 0) {
        std::swap(one, held[oldest]);
        oldest = oldest + 1 == live ? 0 : oldest + 1;
      }
      allocator.release(one, bytes);
    }
    return nanoseconds(Clock::now() - begin) / kBatch;
  };
  for (int i = 0; i < kBatches / 4; ++i) batch();
  const std::uint64_t calls = allocator.device_calls();
  std::vector<double> times;
  for (int i = 0; i < kBatches; ++i) times.push_back(batch());
  const std::uint64_t made = allocator.device_calls() - calls;
  for (auto& one : held) allocator.release(one, bytes);
  std::ranges::sort(times);
  return {times[times.size() / 2], times[times.size() * 99 / 100], made};
}

/// A thousand blocks of 24 sizes are cached, and the next one asked for has another size.
template <class Allocator>
Latency mixed_latency() {
  constexpr std::size_t kSizes = 24;
  constexpr int kBatches = 4000;
  Allocator allocator;
  const StreamId stream = allocator.stream();
  std::array<std::size_t, kSizes> sizes{};
  for (std::size_t i = 0; i < kSizes; ++i) sizes[i] = runtime::class_bytes(i);
  {
    std::vector<std::pair<decltype(allocator.allocate(1, stream)), std::size_t>> all;
    for (const std::size_t bytes : sizes)
      for (int i = 0; i < 42; ++i) all.emplace_back(allocator.allocate(bytes, stream), bytes);
    for (auto& [one, bytes] : all) allocator.release(one, bytes);
  }
  std::vector<double> times;
  for (int batch = 0; batch < kBatches; ++batch) {
    const auto begin = Clock::now();
    for (std::size_t i = 0; i < 2 * kSizes; ++i) {
      const std::size_t bytes = sizes[i * 7 % kSizes];
      auto one = allocator.allocate(bytes, stream);
      keep(one);
      allocator.release(one, bytes);
    }
    times.push_back(nanoseconds(Clock::now() - begin) / (2 * kSizes));
  }
  std::ranges::sort(times);
  return {times[times.size() / 2], times[times.size() * 99 / 100], 0};
}

/// A million pairs take as many milliseconds as one takes nanoseconds.
void add_latency(Json& rows, const std::string& name, const Latency& ours, const Latency& locked,
                 const Latency& malloc) {
  rows.push_back({{"name", name},
                  {"device", "cpu"},
                  {"threads", 1},
                  {"ms", ours.median},
                  {"error", 0},
                  {"reference_ms", locked.median},
                  {"p50_ns", ours.median},
                  {"p99_ns", ours.p99},
                  {"device_calls", ours.device_calls},
                  {"locked_map_p50_ns", locked.median},
                  {"locked_map_p99_ns", locked.p99},
                  {"malloc_p50_ns", malloc.median},
                  {"malloc_p99_ns", malloc.p99}});
}

void latencies(Json& rows) {
  for (const std::size_t bytes : {256UL, 16384UL, 1048576UL, 3145728UL})
    for (const std::size_t live : {0UL, 64UL})
      add_latency(rows, fmt::format("pair_{}_live{}", bytes, live),
                  latency<Allocators::Ours>(bytes, live), latency<Allocators::Locked>(bytes, live),
                  latency<Allocators::Malloc>(bytes, live));
  add_latency(rows, "pair_of_24_sizes_1000_cached", mixed_latency<Allocators::Ours>(),
              mixed_latency<Allocators::Locked>(), mixed_latency<Allocators::Malloc>());
}

double thread_nanoseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e9 + static_cast<double>(now.tv_nsec);
}

struct Contention {
  double cpu_ns = 0;            ///< processor time of a pair, mean over threads
  double pairs_per_second = 0;  ///< all threads together
};

template <class Allocator>
Contention contention(int threads) {
  constexpr int kPairs = 400'000;
  Allocator allocator;
  std::vector<StreamId> streams;
  for (int t = 0; t < threads; ++t) {
    streams.push_back(allocator.stream());
    for (const std::size_t bytes : {256UL, 4096UL, 65536UL})
      allocator.warm(bytes, streams.back(), 9);
  }
  std::barrier start(threads + 1);
  std::vector<double> cpu(static_cast<std::size_t>(threads));
  std::vector<std::jthread> running;
  for (int t = 0; t < threads; ++t)
    running.emplace_back([&, t] {
      const StreamId stream = streams[static_cast<std::size_t>(t)];
      constexpr std::array kSizes = {256UL, 4096UL, 65536UL};
      std::array<decltype(allocator.allocate(1, stream)), 8> held{};
      std::array<std::size_t, 8> sizes{};
      for (std::size_t i = 0; i < held.size(); ++i)
        held[i] = allocator.allocate(sizes[i] = kSizes[i % 3], stream);
      start.arrive_and_wait();
      const double begin = thread_nanoseconds();
      for (std::size_t i = 0; i < kPairs; ++i) {
        const std::size_t at = i % held.size();
        allocator.release(held[at], sizes[at]);
        sizes[at] = kSizes[(i * 7) % 3];
        held[at] = allocator.allocate(sizes[at], stream);
        keep(held[at]);
      }
      cpu[static_cast<std::size_t>(t)] = (thread_nanoseconds() - begin) / kPairs;
      for (std::size_t i = 0; i < held.size(); ++i) allocator.release(held[i], sizes[i]);
    });
  start.arrive_and_wait();
  const auto begin = Clock::now();
  running.clear();
  const double seconds = nanoseconds(Clock::now() - begin) * 1e-9;
  Contention result;
  for (const double one : cpu) result.cpu_ns += one / threads;
  result.pairs_per_second = kPairs * threads / seconds;
  return result;
}

template <class Allocator>
Contention best_contention(int threads) {
  Contention best = contention<Allocator>(threads);
  for (int i = 0; i < 4; ++i) {
    const Contention next = contention<Allocator>(threads);
    best.cpu_ns = std::min(best.cpu_ns, next.cpu_ns);
    best.pairs_per_second = std::max(best.pairs_per_second, next.pairs_per_second);
  }
  return best;
}

void contentions(Json& rows, int most) {
  double alone = 0;
  for (int threads = 1; threads <= most; threads *= 2) {
    const Contention ours = best_contention<Allocators::Ours>(threads);
    const Contention locked = best_contention<Allocators::Locked>(threads);
    if (threads == 1) alone = ours.pairs_per_second;
    rows.push_back({{"name", "own_streams"},
                    {"device", "cpu"},
                    {"threads", threads},
                    {"ms", ours.cpu_ns},
                    {"error", 0},
                    {"reference_ms", locked.cpu_ns},
                    {"cpu_ns_a_pair", ours.cpu_ns},
                    {"million_pairs_per_s", ours.pairs_per_second * 1e-6},
                    {"times_one_thread", ours.pairs_per_second / alone},
                    {"locked_map_cpu_ns", locked.cpu_ns},
                    {"locked_map_million_pairs_per_s", locked.pairs_per_second * 1e-6}});
  }
}

/// Four streams, each with a working set of its own that is allocated, used and freed; the first
/// time and again.
void cold_and_warm(Json& rows) {
  const auto round = [](Heap& heap, runtime::Executor& executor,
                        const std::vector<StreamId>& streams) {
    const auto begin = Clock::now();
    for (const StreamId stream : streams)
      for (int i = 0; i < 100; ++i) {
        std::vector<Buffer> buffers;
        for (std::size_t size = 1024; size <= (std::size_t{8} << 20); size *= 4)
          buffers.push_back(heap.allocate(size + static_cast<std::size_t>(i) * 300, stream));
        for (const Buffer& buffer : buffers) executor.launch(stream, {}, {runtime::writes(buffer)});
      }
    return nanoseconds(Clock::now() - begin) * 1e-6;
  };
  std::vector<double> cold, warm;
  std::uint64_t cold_maps = 0, warm_maps = 0, waits = 0;
  for (int i = 0; i < 9; ++i) {
    doctor::ModelDevice device;
    Timeline timeline;
    Heap heap(device, timeline);
    runtime::Executor executor(timeline);
    std::vector<StreamId> streams;
    for (int s = 0; s < 4; ++s) streams.push_back(timeline.create(device));
    cold.push_back(round(heap, executor, streams));
    cold_maps = device.counts().maps;
    warm.push_back(round(heap, executor, streams));
    warm_maps = device.counts().maps - cold_maps;
    waits = device.counts().waits;
  }
  std::ranges::sort(cold);
  std::ranges::sort(warm);
  rows.push_back({{"name", "four_streams_cold"},
                  {"device", "model"},
                  {"threads", 1},
                  {"ms", cold[4]},
                  {"error", 0},
                  {"reference_ms", warm[4]},
                  {"maps", cold_maps},
                  {"waits", waits}});
  rows.push_back({{"name", "four_streams_warm"},
                  {"device", "model"},
                  {"threads", 1},
                  {"ms", warm[4]},
                  {"error", 0},
                  {"reference_ms", cold[4]},
                  {"maps", warm_maps}});
}

struct NamedPolicy {
  const char* name;
  bench::PolicyOptions options;
};

/// What the program needs itself: no memory is used again.
struct Base {
  double makespan = 0;
  double records = 0;
  double waits = 0;
};

/// The figures of a policy are means over programs and schedules, of events and waits less those
/// that the program needs itself. Addresses: how many different traces eight schedules give.
void models(Json& rows, int programs, double foreign, std::uint64_t first_seed) {
  using Kind = bench::PolicyKind;
  constexpr int kSteps = 4000;
  constexpr int kSchedules = 8;
  const std::vector<NamedPolicy> policies = {
      {"record and poll", {Kind::kRecordAndPoll}},
      {"event per free", {Kind::kEventPerFree}},
      {"frontier", {Kind::kFrontier}},
      {"frontier, least memory", {Kind::kFrontier, 1}},
      {"frontier, fewest waits", {Kind::kFrontier, std::size_t{1} << 45}},
      {"no record (wrong)", {Kind::kNothing}},
  };
  for (const auto& [group, work] : std::initializer_list<std::pair<const char*, double>>{
           {"host far ahead", 20.0}, {"closer", 2.8}, {"device keeps up", 1.0}}) {
    Base base;
    for (int p = 0; p < programs; ++p) {
      const auto program =
          bench::model_program(first_seed + static_cast<std::uint64_t>(p), kSteps, foreign);
      for (int s = 0; s < kSchedules; ++s) {
        const auto r =
            bench::run_model(program, {.free = false}, work, static_cast<std::uint64_t>(s));
        const double part = 1.0 / (programs * kSchedules);
        base.makespan += part * r.makespan;
        base.records += part * static_cast<double>(r.records);
        base.waits += part * static_cast<double>(r.waits);
      }
    }
    for (const NamedPolicy& policy : policies) {
      double live = 0, peak = 0, makespan = 0, records = 0, waits = 0, queries = 0, traces = 0;
      int wrong = 0;
      const auto begin = Clock::now();
      for (int p = 0; p < programs; ++p) {
        const auto program =
            bench::model_program(first_seed + static_cast<std::uint64_t>(p), kSteps, foreign);
        std::set<std::uint64_t> addresses;
        for (int s = 0; s < kSchedules; ++s) {
          const auto r =
              bench::run_model(program, policy.options, work, static_cast<std::uint64_t>(s));
          const double part = 1.0 / (programs * kSchedules);
          live += part * r.live_mib;
          peak += part * r.peak_mib;
          makespan += part * r.makespan;
          records += part * static_cast<double>(r.records);
          waits += part * static_cast<double>(r.waits);
          queries += part * static_cast<double>(r.queries);
          wrong += r.conflicts > 0 ? 1 : 0;
          addresses.insert(r.addresses);
        }
        traces += static_cast<double>(addresses.size()) / programs;
      }
      const double steps = static_cast<double>(programs) * kSchedules * kSteps;
      rows.push_back({{"name", fmt::format("streams_{:.0f}%_foreign", foreign * 100)},
                      {"device", "model"},
                      {"threads", 1},
                      {"group", group},
                      {"bar", policy.name},
                      {"live_mib", live},
                      {"peak_mib", peak},
                      {"records", records - base.records},
                      {"waits", waits - base.waits},
                      {"queries", queries},
                      {"makespan_percent", 100 * (makespan / base.makespan - 1)},
                      {"address_traces_of_8", traces},
                      {"wrong_runs", wrong},
                      {"of_runs", programs * kSchedules},
                      {"host_us_a_step", nanoseconds(Clock::now() - begin) / steps * 1e-3}});
    }
  }
}

/// Recorded traces through the heap.
void replays(Json& rows, const std::vector<std::string>& files) {
  for (const std::string& file : files) {
    const doctor::MemoryRecord record = doctor::read_record(file);
    std::vector<double> times;
    doctor::ReplayResult result;
    for (int i = 0; i < 9; ++i) {
      doctor::ModelDevice device;
      const auto begin = Clock::now();
      result = doctor::replay(record, device);
      times.push_back(nanoseconds(Clock::now() - begin));
    }
    std::ranges::sort(times);
    constexpr double kMiB = 1 << 20;
    rows.push_back({{"name", "replay_" + file.substr(file.rfind('/') + 1)},
                    {"device", "model"},
                    {"threads", 1},
                    {"allocations", result.allocations},
                    {"us_an_allocation", times[4] * 1e-3 / static_cast<double>(result.allocations)},
                    {"peak_requested_mib", static_cast<double>(result.peak_requested) / kMiB},
                    {"peak_mib", static_cast<double>(result.peak_mapped) / kMiB},
                    {"waits", result.waits},
                    {"grown", result.grown}});
  }
}

}  // namespace

int main(int argc, char** argv) {
  const int threads = argc > 1 ? std::atoi(argv[1]) : 8;
  const std::string only = argc > 2 ? argv[2] : "";
  Json rows = Json::array();
  const auto wanted = [&](const char* name) { return only.empty() || only == name; };
  if (wanted("pair")) latencies(rows);
  if (wanted("own_streams")) contentions(rows, threads);
  if (wanted("four_streams")) cold_and_warm(rows);
  if (wanted("streams")) {
    models(rows, 5, 0.4, 1);
    models(rows, 2, 0.1, 1001);
    models(rows, 2, 0.8, 2001);
  }
  if (wanted("replay")) {
    std::vector<std::string> files = {SEGFUSE_SOURCE_DIR "/tests/golden/memory/steps.json",
                                      SEGFUSE_SOURCE_DIR "/tests/golden/memory/rmm.csv"};
    if (only == "replay") files.insert(files.end(), argv + 3, argv + argc);
    replays(rows, files);
  }
  fmt::print("{}\n", rows.dump(1));
  return 0;
}
