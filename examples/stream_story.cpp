// Indices are computed on one stream, a gather on another stream reads them later, the host drops
// them at once, and their memory is asked for again. Shows what an allocator does that knows one
// stream only, what the checker says of it, and that segfuse's heap gets it right without any help.
//
//   stream_story [PICTURE.svg]        on a CUDA device if there is one, else on the CPU

#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <exception>
#include <fstream>
#include <memory>
#include <thread>
#include <vector>

#include "runtime/check/race_checker.h"
#include "runtime/cpu/cpu_device.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/executor.h"
#include "runtime/gpu.h"
#include "runtime/memory/heap.h"

namespace {

using namespace segfuse;
using namespace segfuse::runtime;

constexpr int kCount = 1 << 16;
constexpr std::size_t kBytes = kCount * sizeof(int);

constexpr const char* kKernels = R"(
struct Arguments { int* indices; int* result; int count; int step; };
extern "C" __global__ void make_indices(Arguments a) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += gridDim.x * blockDim.x)
    a.indices[i] = (i * 7 + a.step) % a.count;
}
extern "C" __global__ void gather(Arguments a) {
  const long long begin = clock64();
  while (clock64() - begin < 2000000) {}  // the gather comes late
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += gridDim.x * blockDim.x)
    a.result[i] = a.indices[i] == (i * 7 + a.step) % a.count ? 0 : 1;
}
extern "C" __global__ void noise(Arguments a) {
  for (int i = blockIdx.x * blockDim.x + threadIdx.x; i < a.count; i += gridDim.x * blockDim.x)
    a.indices[i] = -1;
}
)";

/// The three kernels, on the CPU or on a GPU. A gather writes 1 for each index that is wrong.
class Kernels {
 public:
  Kernels() {
    if (cuda_device_count() > 0) {
      gpu_ = open_cuda_gpu(0);
      device_ = open_cuda_device(0);
    } else {
      device_ = std::make_unique<CpuDevice>();
    }
  }
  Device& device() { return *device_; }

  Work make_indices(std::byte* indices, int step) {
    return work("make indices", "make_indices", indices, nullptr, step, [=] {
      for (int i = 0; i < kCount; ++i) put(indices, i, index(i, step));
    });
  }
  Work gather(std::byte* indices, std::byte* result, int step) {
    return work("gather", "gather", indices, result, step, [=] {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the gather comes late
      for (int i = 0; i < kCount; ++i) put(result, i, get(indices, i) == index(i, step) ? 0 : 1);
    });
  }
  Work noise(std::byte* memory) {
    return work("noise", "noise", memory, nullptr, 0, [=] {
      for (int i = 0; i < kCount; ++i) put(memory, i, -1);
    });
  }

 private:
  struct Arguments {
    int* indices;
    int* result;
    int count;
    int step;
  };
  static int index(int i, int step) { return (i * 7 + step) % kCount; }
  static int get(const std::byte* at, int i) { return reinterpret_cast<const int*>(at)[i]; }
  static void put(std::byte* at, int i, int value) { reinterpret_cast<int*>(at)[i] = value; }

  template <class Body>
  Work work(const char* name, const char* entry, std::byte* indices, std::byte* result, int step,
            Body on_cpu) {
    if (gpu_ == nullptr) return {name, [on_cpu](StreamHandle) { on_cpu(); }};
    const GpuKernel kernel = gpu_->kernel({"story", kKernels, {}}, entry);
    const Arguments arguments{reinterpret_cast<int*>(indices), reinterpret_cast<int*>(result),
                              kCount, step};
    return {name, [gpu = gpu_, kernel, arguments](StreamHandle stream) {
              gpu->launch(kernel, {32, 1, 1}, {256, 1, 1}, 0, &arguments, sizeof(arguments),
                          stream);
            }};
  }

  std::shared_ptr<Gpu> gpu_;
  std::unique_ptr<Device> device_;
};

long wrong_in(Device& device, StreamHandle stream, const std::byte* result, std::byte* pinned) {
  device.copy(stream, pinned, result, kBytes);
  device.synchronize(stream);
  long wrong = 0;
  for (int i = 0; i < kCount; ++i) wrong += reinterpret_cast<const int*>(pinned)[i];
  return wrong;
}

/// What an allocator does that keeps free blocks by stream and asks nobody else: the block is free
/// when its last handle goes, and is handed out again for the stream it was allocated for.
long naive(Kernels& kernels, Device& device, std::byte* pinned) {
  const std::size_t granule = (kBytes + device.granule() - 1) / device.granule() * device.granule();
  std::byte* const memory = device.reserve(2 * granule);
  device.map(memory, 2 * granule);
  std::byte* const indices = memory;
  std::byte* const result = memory + granule;
  const StreamHandle prepare = device.create_stream();
  const StreamHandle compute = device.create_stream();
  const EventHandle ready = device.create_event();
  const MemoryAccess make{indices, kBytes, true, "indices"};
  const MemoryAccess read[] = {{indices, kBytes, false, "indices"},
                               {result, kBytes, true, "result"}};
  const MemoryAccess reuse{indices, kBytes, true, "noise"};

  device.launch(prepare, kernels.make_indices(indices, 1), {&make, 1});
  device.record(ready, prepare);
  device.wait(compute, ready);  // the kernels are in order, as they have to be
  device.launch(compute, kernels.gather(indices, result, 1), read);
  // The indices are dropped here, and the same memory is handed out again.
  device.launch(prepare, kernels.noise(indices), {&reuse, 1});

  const long wrong = wrong_in(device, compute, result, pinned);
  device.synchronize(prepare);
  device.destroy_event(ready);
  device.destroy_stream(prepare);
  device.destroy_stream(compute);
  device.unmap(memory, 2 * granule);
  device.unreserve(memory, 2 * granule);
  return wrong;
}

/// The same with the heap. Nothing is said about streams but where work goes.
long with_heap(Kernels& kernels, Device& device, std::byte* pinned, int steps) {
  Timeline timeline;
  Heap heap(device, timeline, {.soft_limit = 1});  // rather wait than grow
  Executor executor(timeline);
  const StreamId prepare = timeline.create(device, "prepare");
  const StreamId compute = timeline.create(device, "compute");
  const Buffer result = heap.allocate(kBytes, compute, "result");
  long wrong = 0;
  int reused = 0;
  for (int step = 0; step < steps; ++step) {
    std::byte* former = nullptr;
    {
      const Buffer indices = heap.allocate(kBytes, prepare, "indices");
      former = indices.address();
      executor.launch(prepare, kernels.make_indices(indices.address(), step), {writes(indices)});
      executor.launch(compute, kernels.gather(indices.address(), result.address(), step),
                      {reads(indices), writes(result)});
    }
    const Buffer next = heap.allocate(kBytes, prepare, "noise");
    reused += next.address() == former ? 1 : 0;
    executor.launch(prepare, kernels.noise(next.address()), {writes(next)});
    executor.wait_written(result);
    wrong += wrong_in(device, timeline.handle(compute), result.address(), pinned);
  }
  fmt::print(
      "  the memory came back {} times in {} steps; {} waits between streams, {:.1f} MiB held\n",
      reused, steps, timeline.counts().waits,
      static_cast<double>(heap.statistics().mapped_bytes) / (1 << 20));
  return wrong;
}

/// Whether the heap got it right.
bool story(const char* picture) {
  Kernels kernels;
  Device& device = kernels.device();
  std::byte* const pinned = device.allocate_pinned(kBytes);
  fmt::print("on {}\n", device.name());
  // A kernel is loaded at its first launch, which may wait for all work: not a fair beginning.
  static_cast<void>(naive(kernels, device, pinned));

  fmt::print("free lists by stream:\n  {} of {} gathered indices are wrong\n",
             naive(kernels, device, pinned), kCount);
  RaceChecker checker(device);
  static_cast<void>(naive(kernels, checker, pinned));
  for (const Finding& finding : checker.findings())
    fmt::print("  checker: {}\n", finding.describe());
  if (picture != nullptr && checker.count() > 0) {
    std::ofstream(picture) << race_picture(checker.findings().front());
    fmt::print("  picture: {}\n", picture);
  }

  fmt::print("segfuse's heap:\n");
  RaceChecker silent(device);
  const long wrong = with_heap(kernels, silent, pinned, 100);
  fmt::print("  {} gathered indices are wrong; the checker found {} races\n", wrong,
             silent.count());
  device.release_pinned(pinned, kBytes);
  return wrong == 0 && silent.count() == 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return story(argc > 1 ? argv[1] : nullptr) ? 0 : 1;
  } catch (const segfuse::Error& error) {
    fmt::print(stderr, "stream_story: {}\n", error.what());
    return static_cast<int>(error.exit_code());
  }
}
