#pragma once
// What a GPU does for the modules above: memory in stream order, kernels from source, copies. The
// CUDA driver implements it (runtime/cuda); tests implement it in host memory.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/code/code_store.h"
#include "runtime/device.h"
#include "segfuse/tensor.h"

namespace segfuse::runtime {

struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Device code: the text is compiled with the definitions, once per device kind.
struct GpuProgram {
  std::string name;                  ///< for messages and caches: "semicrf"
  std::string source;                ///< CUDA C++, complete
  std::vector<std::string> defines;  ///< "NAME=VALUE"
};

/// An entry point of a loaded program; valid as long as its Gpu.
struct GpuKernel {
  void* handle = nullptr;
};

/// One operand of a matrix product in device memory.
struct GpuMatrix {
  std::int64_t batch_stride = 0;  ///< elements between matrices; 0: one for all
  std::int64_t leading = 1;       ///< elements between rows (between columns when by_columns)
  bool by_columns = false;        ///< neighbours in a column are neighbours in memory
  std::uint32_t alignment = 256;  ///< of the first element, in bytes
};

/// out = a b for each of a batch: a is (m, k), b (k, n), out (m, n) by rows without gaps. No side
/// is empty.
struct GpuProduct {
  DType dtype = DType::kF32;  ///< a float; halves are summed in f32
  std::int64_t batch = 1, m = 1, n = 1, k = 1;
  GpuMatrix a, b;
  std::uint32_t out_alignment = 256;
};

/// A product that a library has prepared. The same bits for the same operands.
class GpuMatmul {
 public:
  virtual ~GpuMatmul() = default;
  virtual std::size_t workspace_bytes() const = 0;
  /// Enqueues it; `workspace` is aligned to 256 bytes.
  virtual void run(const void* a, const void* b, void* out, void* workspace,
                   StreamHandle stream) const = 0;
};

/// Streams are the caller's; null is the legacy default stream.
class Gpu {
 public:
  virtual ~Gpu() = default;
  virtual std::string name() const = 0;
  virtual int multiprocessors() const = 0;
  /// Doubles at half the rate of floats, not at a small fraction.
  virtual bool fast_double() const = 0;

  /// Loads the program (from memory, from the disk cache, or by compiling) and finds the kernel.
  /// Any thread; programs are compiled beside each other.
  virtual GpuKernel kernel(const GpuProgram& program, const std::string& entry) = 0;
  /// Memory of each thread, which a kernel has for arrays and for registers that it lacked.
  virtual std::size_t local_bytes(GpuKernel /*kernel*/) { return 0; }
  /// Enqueues one launch. The kernel takes one argument, `size` bytes copied before this returns.
  virtual void launch(GpuKernel kernel, Extent3 grid, Extent3 block, std::size_t shared_bytes,
                      const void* argument, std::size_t size, StreamHandle stream) = 0;

  /// The same with all blocks running at once, so that they may wait for each other: at most one
  /// for each multiprocessor.
  virtual void launch_together(GpuKernel kernel, Extent3 grid, Extent3 block,
                               std::size_t shared_bytes, const void* argument, std::size_t size,
                               StreamHandle stream) = 0;

  /// Memory usable by work enqueued on `stream` after the call, until release() on that stream.
  virtual void* allocate(std::size_t bytes, StreamHandle stream) = 0;
  virtual void release(void* memory, StreamHandle stream) noexcept = 0;
  virtual void fill(void* memory, std::uint8_t value, std::size_t bytes, StreamHandle stream) = 0;
  /// Host memory on one side; waits for the copy.
  virtual void copy_to_host(void* to, const void* from, std::size_t bytes, StreamHandle stream) = 0;
  virtual void copy_to_device(void* to, const void* from, std::size_t bytes,
                              StreamHandle stream) = 0;
  virtual void synchronize(StreamHandle stream) = 0;

  /// The device's library for matrix products; null where there is none.
  virtual std::unique_ptr<GpuMatmul> matmul(const GpuProduct& product) {
    static_cast<void>(product);
    return nullptr;
  }
};

/// The CUDA device with this ordinal, through the driver opened at run time, whose compiled code is
/// kept in `code`, if given; one object for each device and folder. Throws DeviceError that says
/// what is missing (driver, NVRTC, device).
std::shared_ptr<Gpu> open_cuda_gpu(int ordinal, std::shared_ptr<const CodeStore> code = nullptr);
/// Number of CUDA devices, 0 without a driver; `reason` says why there are none.
int cuda_device_count(std::string* reason = nullptr);

/// "cuBLASLt 13.1.0", or the sentence that says why it cannot be used.
std::string cuda_matmul_library();

/// "NVRTC 13.0". Throws DeviceError when it cannot be found.
std::string cuda_compiler();

}  // namespace segfuse::runtime
