#pragma once
// A GPU as programs use it: its memory, its streams, its kernels. All device memory of engine and
// trainer comes from here.

#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "runtime/check/race_checker.h"
#include "runtime/executor.h"
#include "runtime/gpu.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/pinned.h"
#include "segfuse/tensor.h"

namespace segfuse::engine {

/// No device memory for a request: a DeviceError that says who holds what. Everything may be used
/// on.
using OutOfDeviceMemory = runtime::OutOfDeviceMemory;

struct AcceleratorOptions {
  runtime::HeapOptions heap{};
  /// Streams that independent steps of a program are put on.
  int streams = 1;
  /// Where staging memory comes from, and what has to live as long as it does.
  runtime::PinnedOptions staging{};
  std::shared_ptr<void> behind_staging{};
  /// Every use of memory is checked for missing waits; a race is an InternalError with its picture.
  bool check_streams = false;
};

/// Tensors hold it. Programs and tensors of one accelerator may be used from one thread at a time.
class Accelerator : public std::enable_shared_from_this<Accelerator> {
 public:
  /// `device` runs what is enqueued, `gpu` finds and launches kernels on streams of `device`.
  static std::shared_ptr<Accelerator> make(std::string name, std::shared_ptr<runtime::Gpu> gpu,
                                           std::unique_ptr<runtime::Device> device,
                                           AcceleratorOptions options = {});
  ~Accelerator();

  /// "cuda:0"
  const std::string& name() const { return name_; }
  runtime::Gpu& gpu() const { return *gpu_; }
  const std::shared_ptr<runtime::Gpu>& shared_gpu() const { return gpu_; }
  runtime::Heap& heap() { return heap_; }
  runtime::Executor& executor() { return executor_; }
  /// Where programs run; the first one where single calls go.
  std::span<const runtime::StreamId> streams() const { return streams_; }

  /// A tensor with undefined elements; `label`, for reports, lives as long as the accelerator.
  Tensor empty(DType dtype, Shape shape, std::string_view label);
  /// A copy of a tensor in host memory, enqueued on a stream of its own so that it goes beside
  /// kernels: what uses the result waits for it. The host's memory may be changed at once.
  Tensor upload(const Tensor& host, std::string_view label = "upload");
  /// Writes a host tensor's elements into the memory of one of the same type and shape.
  void upload_into(const Tensor& host, const Tensor& device);
  bool owns(const Tensor& tensor) const;
  /// The memory of a tensor of this accelerator. UsageError for another one.
  const runtime::Buffer& buffer(const Tensor& tensor) const;
  runtime::Buffer allocate(std::size_t bytes, std::string_view label);
  /// Fills `host` from the beginning of a buffer, when its last write is over.
  void download(const runtime::Buffer& from, Tensor& host) {
    copy_out(host.data(), from, host.bytes());
  }

  /// Waits for all that was enqueued; throws the first failure.
  void synchronize();

 private:
  class Memory;
  Accelerator(std::string name, std::shared_ptr<runtime::Gpu> gpu,
              std::unique_ptr<runtime::Device> device, const AcceleratorOptions& options);
  void copy_in(const Tensor& host, const runtime::Buffer& to);
  void copy_out(void* to, const runtime::Buffer& from, std::size_t bytes);
  runtime::Device& outer() const;

  std::string name_;
  std::shared_ptr<void> behind_staging_;
  std::shared_ptr<runtime::Gpu> gpu_;
  std::unique_ptr<runtime::Device> device_;
  std::unique_ptr<runtime::RaceChecker> checker_;  ///< around the device, when asked for
  runtime::Timeline timeline_;
  runtime::Executor executor_;
  runtime::Heap heap_;
  runtime::PinnedPool pinned_;
  std::vector<runtime::StreamId> streams_;
  runtime::StreamId copies_;
};

/// "cuda" or "cuda:1": one object per device and process as long as somebody holds it. Nothing for
/// "cpu". UsageError for other names, DeviceError that says what is missing.
std::shared_ptr<Accelerator> open_accelerator(std::string_view name);

}  // namespace segfuse::engine
