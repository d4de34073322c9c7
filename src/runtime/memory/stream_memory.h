#pragma once
// Device memory for code that enqueues on streams of others by hand, such as the CRF's calls on a
// stream of PyTorch. A heap's memory in a program comes as buffers (buffer.h), by address with
// known streams as a resource (resource.h).

#include <cstddef>
#include <memory>

#include "runtime/device.h"
#include "runtime/kernels.h"

namespace segfuse::runtime {

class StreamMemory {
 public:
  virtual ~StreamMemory() = default;
  /// Memory for work that is enqueued on `stream` from now on, aligned to 256 bytes, its content
  /// undefined. Throws OutOfDeviceMemory.
  virtual std::byte* allocate(StreamHandle stream, std::size_t bytes) = 0;
  /// Work that is enqueued on `stream` so far may still use it. All other uses are ordered before
  /// that, or over.
  virtual void release(StreamHandle stream, std::byte* memory) noexcept = 0;
};

/// What such code works with. All of it is one device's.
struct DeviceAccess {
  std::shared_ptr<Device> device;
  std::shared_ptr<KernelLoader> kernels;
  std::shared_ptr<StreamMemory> memory;
  StreamHandle home;  ///< a stream for what belongs to no call
};

}  // namespace segfuse::runtime
