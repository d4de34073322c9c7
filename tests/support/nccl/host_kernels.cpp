#include "support/nccl/host_kernels.h"

#include <atomic>
#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <thread>

#include "comm/nccl/add_nodes.h"

// The device's language, as far as the kernels use it: one device thread after the other where
// they do not wait for others, and one for a whole block where they do. Ranks are threads, so what
// one writes and another reads is seen by the thread sanitizer.
namespace segfuse::comm::gpu {

struct DeviceIndex {
  unsigned x = 0;
};
static thread_local DeviceIndex thread_index;
static thread_local DeviceIndex block_index;
static thread_local DeviceIndex block_size;
static thread_local DeviceIndex grid_size;

static inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
static inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
static inline void __syncthreads() {}
static inline bool __syncthreads_and(bool value) { return value; }
static inline unsigned load_flag(const unsigned* at) {
  return std::atomic_ref(const_cast<unsigned&>(*at)).load(std::memory_order_acquire);
}
static inline void store_flag(unsigned* at, unsigned value) {
  std::atomic_ref(*at).store(value, std::memory_order_release);
}
static inline unsigned load_over(const unsigned* at) {
  return std::atomic_ref(const_cast<unsigned&>(*at)).load(std::memory_order_relaxed);
}
static inline void rest(unsigned) { std::this_thread::yield(); }
template <class Words>
static inline void store_far(Words* at, const Words& value) {
  *at = value;
}

}  // namespace segfuse::comm::gpu

#define DEVICE [[maybe_unused]] static inline
#define KERNEL static void
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx thread_index
#define blockIdx block_index
#define blockDim block_size
#define gridDim grid_size
#include "comm/nccl/kernels/add_nodes.cuh"
#include "comm/nccl/kernels/sum_over_peers.cuh"

namespace segfuse::test {
namespace {

using comm::gpu::AddArguments;
using comm::gpu::PeerArguments;

void run(unsigned blocks, unsigned threads, const AddArguments& arguments) {
  namespace gpu = comm::gpu;
  gpu::grid_size.x = blocks;
  for (gpu::block_index.x = 0; gpu::block_index.x < blocks; ++gpu::block_index.x)
    for (gpu::thread_index.x = 0; gpu::thread_index.x < threads; ++gpu::thread_index.x)
      gpu::add_nodes(arguments);
}

/// A thread of a block waits for one other rank each, so this one waits for all in turn.
void run(unsigned blocks, unsigned /*threads*/, const PeerArguments& arguments) {
  namespace gpu = comm::gpu;
  gpu::grid_size.x = blocks;
  gpu::thread_index.x = 0;
  gpu::block_size.x = 1;
  for (gpu::block_index.x = 0; gpu::block_index.x < blocks; ++gpu::block_index.x)
    gpu::sum_over_peers(arguments);
}

class HostKernels final : public runtime::KernelLoader {
 public:
  using Enqueue = std::function<void(void*, std::function<void()>)>;
  explicit HostKernels(Enqueue enqueue) : enqueue_(std::move(enqueue)) {}

  int multiprocessors() const override { return 2; }

  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    if (program.source != comm::nccl_kernel_source(entry + ".cuh"))
      throw std::logic_error("another kernel than those that are compiled here");
    static char over_peers;
    return {entry == "add_nodes" ? nullptr : &over_peers};
  }

  void launch(runtime::StreamHandle stream, runtime::GpuKernel kernel,
              const runtime::GpuLaunch& launch, const void* argument, std::size_t size) override {
    if (kernel.handle == nullptr)
      enqueue<AddArguments>(stream, launch, argument, size);
    else
      enqueue<PeerArguments>(stream, launch, argument, size);
  }

 private:
  template <class Arguments>
  void enqueue(runtime::StreamHandle stream, const runtime::GpuLaunch& launch, const void* argument,
               std::size_t size) {
    if (size != sizeof(Arguments)) throw std::logic_error("another kernel's argument");
    const auto work = [launch, arguments = *static_cast<const Arguments*>(argument)] {
      run(launch.grid.x, launch.block.x, arguments);
    };
    if (enqueue_)
      enqueue_(stream.get(), work);
    else
      work();
  }

  Enqueue enqueue_;
};

}  // namespace

std::shared_ptr<runtime::KernelLoader> make_host_kernels(
    std::function<void(void*, std::function<void()>)> enqueue) {
  return std::make_shared<HostKernels>(std::move(enqueue));
}

}  // namespace segfuse::test
