#pragma once
// Code for a device: program texts become kernels, and kernels are launched on streams. The CUDA
// driver implements it (runtime/cuda); tests implement it in host memory. Memory and order are a
// Device's.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/matmul.h"

namespace segfuse {
class CodeStore;
}

namespace segfuse::runtime {

struct Extent3 {
  unsigned x = 1, y = 1, z = 1;
};

/// Device code: the text is compiled with the definitions, once per device kind.
struct GpuProgram {
  std::string name;                  ///< for messages and caches: "semicrf"
  std::string source;                ///< CUDA C++, complete
  std::vector<std::string> defines;  ///< "NAME=VALUE"
  /// Where the compiled code is looked for and kept; null: nowhere. What the loader has in memory
  /// is not written again for another store.
  std::shared_ptr<const CodeStore> store = nullptr;
};

/// An entry point of a loaded program; valid as long as its loader.
struct GpuKernel {
  void* handle = nullptr;
};

struct GpuLaunch {
  Extent3 grid;
  Extent3 block;
  std::size_t shared_bytes = 0;
  /// All blocks run at once, so that they may wait for each other: at most one for each
  /// multiprocessor.
  bool together = false;
  /// So many blocks beside each other in x run at once and reach each other's shared memory.
  unsigned cluster = 1;
};

class KernelLoader {
 public:
  virtual ~KernelLoader() = default;
  virtual int multiprocessors() const = 0;
  /// Shared memory that one block may ask for at launch; all devices that we know have so much.
  virtual int shared_bytes() const { return 97 << 10; }

  /// Blocks that a cluster may have; 1: the device has no clusters.
  virtual int cluster_blocks() const { return 1; }
  /// How many of a launch's clusters run at once; 0: the device has no place for one.
  virtual int clusters(GpuKernel /*kernel*/, const GpuLaunch& /*launch*/) { return 0; }

  /// Loads the program (from memory, from its store, or by compiling) and finds the kernel.
  /// Any thread; programs are compiled beside each other.
  virtual GpuKernel kernel(const GpuProgram& program, const std::string& entry) = 0;
  /// Memory of each thread, which a kernel has for arrays and for registers that it lacked.
  virtual std::size_t local_bytes(GpuKernel /*kernel*/) { return 0; }
  /// Enqueues one launch. The kernel takes one argument, `size` bytes copied before this returns.
  virtual void launch(StreamHandle stream, GpuKernel kernel, const GpuLaunch& launch,
                      const void* argument, std::size_t size) = 0;

  /// A product prepared by the device's library; null where there is none.
  virtual std::unique_ptr<GpuMatmul> matmul(const GpuProduct& /*product*/) { return nullptr; }
};

/// The loader of the CUDA device with this ordinal, through the driver opened at run time; one for
/// each device and process. Throws DeviceError that says what is missing (driver, NVRTC, device).
std::shared_ptr<KernelLoader> open_cuda_kernels(int ordinal);
/// Number of CUDA devices, 0 without a driver; `reason` says why there are none.
int cuda_device_count(std::string* reason = nullptr);
/// Its UUID in hexadecimal digits; empty where the driver does not say.
std::string cuda_device_identity(int ordinal);

/// "cuBLASLt 13.1.0", or the sentence that says why it cannot be used.
std::string cuda_matmul_library();

/// "NVRTC 13.0". Throws DeviceError when it cannot be found.
std::string cuda_compiler();

}  // namespace segfuse::runtime
