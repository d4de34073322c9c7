#include "support/nccl/host_kernels.h"

#include <bit>
#include <cstdint>
#include <cstring>
#include <stdexcept>

#include "comm/nccl/add_nodes.h"

// The device's language, as far as the kernel uses it; one device thread after the other.
namespace segfuse::comm::gpu {

struct DeviceIndex {
  unsigned x = 0;
};
thread_local DeviceIndex thread_index;
thread_local DeviceIndex block_index;
thread_local DeviceIndex grid_size;

inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }

}  // namespace segfuse::comm::gpu

#define DEVICE inline
#define KERNEL inline void
#define __align__(n) __attribute__((aligned(n)))
#define __launch_bounds__(...)
#define __grid_constant__
#define threadIdx thread_index
#define blockIdx block_index
#define gridDim grid_size
#include "comm/nccl/kernels/add_nodes.cuh"

namespace segfuse::test {
namespace {

using comm::gpu::AddArguments;

void run(unsigned blocks, unsigned threads, const AddArguments& arguments) {
  namespace gpu = comm::gpu;
  gpu::grid_size.x = blocks;
  for (gpu::block_index.x = 0; gpu::block_index.x < blocks; ++gpu::block_index.x)
    for (gpu::thread_index.x = 0; gpu::thread_index.x < threads; ++gpu::thread_index.x)
      gpu::add_nodes(arguments);
}

class HostKernels final : public runtime::KernelLoader {
 public:
  using Enqueue = std::function<void(void*, std::function<void()>)>;
  explicit HostKernels(Enqueue enqueue) : enqueue_(std::move(enqueue)) {}

  int multiprocessors() const override { return 2; }

  runtime::GpuKernel kernel(const runtime::GpuProgram& program, const std::string& entry) override {
    if (program.source != comm::nccl_kernel_source("add_nodes.cuh") || entry != "add_nodes")
      throw std::logic_error("another kernel than the one that is compiled here");
    return {};
  }

  void launch(runtime::StreamHandle stream, runtime::GpuKernel, const runtime::GpuLaunch& launch,
              const void* argument, std::size_t size) override {
    if (size != sizeof(AddArguments)) throw std::logic_error("another kernel's argument");
    const auto work = [launch, arguments = *static_cast<const AddArguments*>(argument)] {
      run(launch.grid.x, launch.block.x, arguments);
    };
    if (enqueue_)
      enqueue_(stream.get(), work);
    else
      work();
  }

 private:
  Enqueue enqueue_;
};

}  // namespace

std::shared_ptr<runtime::KernelLoader> make_host_kernels(
    std::function<void(void*, std::function<void()>)> enqueue) {
  return std::make_shared<HostKernels>(std::move(enqueue));
}

}  // namespace segfuse::test
