// Indices are computed on one stream, a gather on another stream reads them later, the host drops
// them at once, and their memory is asked for again. Shows what an allocator does that knows one
// stream only, what the checker says of it, and that segfuse's heap gets it right without any help.
//
//   stream_story [PICTURE.svg]        on a CUDA device if there is one, else on the CPU

#include <chrono>
#include <cstdio>
#include <fstream>
#include <span>
#include <string_view>
#include <thread>
#include <vector>

#include "segfuse/error.h"
#include "segfuse/memory.h"

namespace {

namespace memory = segfuse::memory;
using memory::Buffer;
using memory::Device;
using memory::reads;
using memory::Stream;
using memory::Work;
using memory::writes;

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

struct Arguments {
  int* indices;
  int* result;
  int count;
  int step;
};

int index(int i, int step) { return (i * 7 + step) % kCount; }

/// The three kernels, on the CPU or on a GPU. A gather writes 1 for each index that is wrong.
class Kernels {
 public:
  Kernels(const Device& device, bool on_gpu) : device_(device), on_gpu_(on_gpu) {}

  Work make_indices(std::byte* indices, int step) const {
    return work("make_indices", {ints(indices), nullptr, kCount, step}, [](const Arguments& a) {
      for (int i = 0; i < a.count; ++i) a.indices[i] = index(i, a.step);
    });
  }
  Work gather(std::byte* indices, std::byte* result, int step) const {
    return work("gather", {ints(indices), ints(result), kCount, step}, [](const Arguments& a) {
      std::this_thread::sleep_for(std::chrono::milliseconds(1));  // the gather comes late
      for (int i = 0; i < a.count; ++i) a.result[i] = a.indices[i] == index(i, a.step) ? 0 : 1;
    });
  }
  Work noise(std::byte* at) const {
    return work("noise", {ints(at), nullptr, kCount, 0}, [](const Arguments& a) {
      for (int i = 0; i < a.count; ++i) a.indices[i] = -1;
    });
  }

 private:
  static int* ints(std::byte* at) { return reinterpret_cast<int*>(at); }

  Work work(const char* name, const Arguments& arguments, void (*on_cpu)(const Arguments&)) const {
    if (on_gpu_)
      return device_.kernel(kKernels, name, 32, 256, std::as_bytes(std::span(&arguments, 1)));
    return {name, [arguments, on_cpu](void*) { on_cpu(arguments); }};
  }

  Device device_;
  bool on_gpu_;
};

long wrong_in(const Device& device, Stream stream, const Buffer& result) {
  std::vector<int> flags(kCount);
  device.read(stream, std::as_writable_bytes(std::span(flags)), result);
  long wrong = 0;
  for (const int flag : flags) wrong += flag;
  return wrong;
}

/// What an allocator does that keeps free blocks by stream and asks nobody else: the block is free
/// when its last handle goes, and is handed out again for the stream it was allocated for.
long naive(const Device& device, const Kernels& kernels) {
  const Stream prepare = device.stream("prepare");
  const Stream compute = device.stream("compute");
  const Buffer block = device.allocate(kBytes, prepare, "block");
  const Buffer result = device.allocate(kBytes, compute, "result");
  {
    const memory::Loan block_to_prepare = block.borrow(prepare);
    const memory::Loan block_to_compute = block.borrow(compute);
    const memory::Loan result_to_compute = result.borrow(compute);
    std::byte* const indices = block.address();
    const memory::Access make{indices, kBytes, true, "indices"};
    const memory::Access read[] = {{indices, kBytes, false, "indices"},
                                   {result.address(), kBytes, true, "result"}};
    const memory::Access reuse{indices, kBytes, true, "noise"};

    device.launch_unordered(prepare, kernels.make_indices(indices, 1), {&make, 1});
    device.wait(compute, prepare);  // the kernels are in order, as they have to be
    device.launch_unordered(compute, kernels.gather(indices, result.address(), 1), read);
    // The indices are dropped here, and the same memory is handed out again.
    device.launch_unordered(prepare, kernels.noise(indices), {&reuse, 1});
  }
  const long wrong = wrong_in(device, compute, result);
  device.retire(prepare);
  device.retire(compute);
  return wrong;
}

/// The same with the heap. Nothing is said about streams but where work goes.
long with_heap(const Device& device, const Kernels& kernels, int steps) {
  const Stream prepare = device.stream("prepare");
  const Stream compute = device.stream("compute");
  const Buffer result = device.allocate(kBytes, compute, "result");
  long wrong = 0;
  int reused = 0;
  for (int step = 0; step < steps; ++step) {
    std::byte* former = nullptr;
    {
      const Buffer indices = device.allocate(kBytes, prepare, "indices");
      former = indices.address();
      device.launch(prepare, kernels.make_indices(indices.address(), step), {writes(indices)});
      device.launch(compute, kernels.gather(indices.address(), result.address(), step),
                    {reads(indices), writes(result)});
    }
    const Buffer next = device.allocate(kBytes, prepare, "noise");
    reused += next.address() == former ? 1 : 0;
    device.launch(prepare, kernels.noise(next.address()), {writes(next)});
    wrong += wrong_in(device, compute, result);
  }
  const memory::Statistics statistics = device.statistics();
  std::printf(
      "  the memory came back %d times in %d steps; %llu waits between streams, %.1f MiB held\n",
      reused, steps, static_cast<unsigned long long>(statistics.waits),
      static_cast<double>(statistics.mapped) / (1 << 20));
  return wrong;
}

bool has_gpu() {
  try {
    Device::open("cuda");
    return true;
  } catch (const segfuse::DeviceError&) {
    return false;
  }
}

/// Whether the heap got it right.
bool story(const char* name, const char* picture) {
  const bool on_gpu = std::string_view(name) != "cpu";
  const Device device = Device::open(name);
  const Kernels kernels(device, on_gpu);
  std::printf("on %s\n", device.name().c_str());
  // A kernel is loaded at its first launch, which may wait for all work: not a fair beginning.
  static_cast<void>(naive(device, kernels));

  std::printf("free lists by stream:\n  %ld of %d gathered indices are wrong\n",
              naive(device, kernels), kCount);
  const Device checked = Device::open(name, {.check_streams = true});
  static_cast<void>(naive(checked, Kernels(checked, on_gpu)));
  const std::vector<memory::Race> races = checked.races();
  for (const memory::Race& race : races) std::printf("  checker: %s\n", race.sentence.c_str());
  if (picture != nullptr && !races.empty()) {
    std::ofstream(picture) << races[0].picture;
    std::printf("  picture: %s\n", picture);
  }

  std::printf("segfuse's heap:\n");
  // Rather wait than grow.
  const Device frugal = Device::open(name, {.soft_limit = 1, .check_streams = true});
  const long wrong = with_heap(frugal, Kernels(frugal, on_gpu), 100);
  std::printf("  %ld gathered indices are wrong; the checker found %zu races\n", wrong,
              frugal.races().size());
  return wrong == 0 && frugal.races().empty() && !races.empty();
}

}  // namespace

int main(int argc, char** argv) try {
  return story(has_gpu() ? "cuda" : "cpu", argc > 1 ? argv[1] : nullptr) ? 0 : 1;
} catch (const segfuse::Error& error) {
  std::fprintf(stderr, "stream_story: %s\n", error.what());
  return static_cast<int>(error.exit_code());
}
