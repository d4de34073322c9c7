#pragma once
// A device as programs use it: its memory, its streams and, of a GPU, its kernels. All device
// memory of engine and trainer comes from here.

#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "runtime/memory/pinned.h"
#include "runtime/open_device.h"
#include "segfuse/context.h"
#include "segfuse/tensor.h"

namespace segfuse::engine {

/// No device memory for a request: a DeviceError that says who holds what. Everything may be used
/// on.
using OutOfDeviceMemory = runtime::OutOfDeviceMemory;

struct AcceleratorOptions {
  /// Streams that independent steps of a program are put on.
  int streams = 1;
  /// Where staging memory comes from, and what has to live as long as it does.
  runtime::PinnedOptions staging{};
  std::shared_ptr<void> behind_staging{};
  /// Of make() with a device of its own: every use of memory is checked for missing waits; a race
  /// is an InternalError with its picture.
  bool check_streams = false;
};

/// Tensors hold it. Programs and tensors of one accelerator may be used from one thread at a time.
class Accelerator : public std::enable_shared_from_this<Accelerator> {
 public:
  static std::shared_ptr<Accelerator> make(std::string name,
                                           std::shared_ptr<runtime::OpenDevice> device,
                                           const AcceleratorOptions& options = {});
  /// With a device of its own; `kernels` launches on streams of `device`; the CPU has none.
  static std::shared_ptr<Accelerator> make(std::string name,
                                           std::shared_ptr<runtime::KernelLoader> kernels,
                                           std::unique_ptr<runtime::Device> device,
                                           const AcceleratorOptions& options = {});
  ~Accelerator();

  /// "cuda:0"
  const std::string& name() const { return name_; }
  const std::shared_ptr<runtime::OpenDevice>& device() const { return device_; }
  const std::shared_ptr<runtime::KernelLoader>& kernels() const { return device_->kernels(); }
  runtime::Heap& heap() { return device_->heap(); }
  runtime::Executor& executor() { return device_->executor(); }
  /// Where programs run; the first one where single calls go.
  std::span<const runtime::StreamId> streams() const { return streams_; }

  /// A tensor with undefined elements; `label`, for reports, lives as long as the accelerator.
  Tensor empty(DType dtype, Shape shape, std::string_view label) {
    return empty(dtype, std::move(shape), label, streams_[0]);
  }
  /// The same for work on `stream` first.
  Tensor empty(DType dtype, Shape shape, std::string_view label, runtime::StreamId stream);
  /// A copy of a tensor in host memory, enqueued on a stream of its own so that it goes beside
  /// kernels: what uses the result waits for it. The host's memory may be changed at once.
  Tensor upload(const Tensor& host, std::string_view label = "upload");
  /// Writes a host tensor's elements into the memory of one of the same type and shape.
  void upload_into(const Tensor& host, const Tensor& device);
  /// The elements of `whole` from number `begin` on under a shape, in the same memory; see
  /// part_of().
  Tensor part(const Tensor& whole, std::int64_t begin, Shape shape);
  bool owns(const Tensor& tensor) const;
  /// Whose memory a tensor is in; null for the host's.
  static std::shared_ptr<Accelerator> of(const Tensor& tensor);
  /// The memory of a tensor of this accelerator. UsageError for another one.
  const runtime::Buffer& buffer(const Tensor& tensor) const;
  runtime::Buffer allocate(std::size_t bytes, std::string_view label);
  /// Fills `host` from the beginning of a buffer, when its last write is over.
  void download(const runtime::Buffer& from, Tensor& host) {
    copy_out(host.data(), from, host.bytes());
  }

  /// Waits for all that was enqueued; throws the first failure.
  void synchronize();
  /// The same, and failures are dropped.
  void drain() noexcept;

  // --- memory and streams of others (segfuse/device_function.h) ---

  /// For those who let several threads call.
  std::mutex& calls() { return calls_; }
  /// Somebody's stream as one of ours, as long as this object: nothing when there are too many.
  /// UsageError as refuse_capture().
  std::optional<runtime::StreamId> adopt(runtime::StreamHandle stream) {
    refuse_capture(stream);
    return device_->adopt(stream);
  }
  /// UsageError if `stream` is being captured into a graph. A replay would use scratch memory that
  /// the heap has handed out again by then.
  void refuse_capture(runtime::StreamHandle stream) const;
  /// A tensor over a buffer of the device, which may be foreign.
  Tensor wrap(DType dtype, Shape shape, runtime::Buffer buffer);
  /// Keeps a foreign buffer until its uses are over. finished() gives those for which that was
  /// seen, by asking the device; the owner that drops them lets them go.
  void keep_until_over(runtime::Buffer buffer);
  std::vector<runtime::Buffer> finished();
  /// The memory of a tensor is about to be used by work that is not seen: ready on `stream`, or for
  /// the host if it is null. It is allocated again only when the device was seen to be idle.
  std::byte* hand_out(const Tensor& tensor, runtime::StreamHandle stream);
  /// Bytes of what was handed out and is free but for that.
  std::size_t waiting_bytes() const;
  /// Waits for all work of the device, of others too, frees those, and gives what was kept.
  std::vector<runtime::Buffer> settle();

 private:
  class Memory;
  Accelerator(std::string name, std::shared_ptr<runtime::OpenDevice> device,
              const AcceleratorOptions& options);
  void bury(runtime::Buffer buffer) noexcept;
  void copy_in(const Tensor& host, const runtime::Buffer& to);
  void copy_out(void* to, const runtime::Buffer& from, std::size_t bytes);
  runtime::Timeline& timeline() const { return device_->timeline(); }

  std::string name_;
  std::shared_ptr<void> behind_staging_;
  std::shared_ptr<runtime::OpenDevice> device_;
  runtime::PinnedPool pinned_;
  std::vector<runtime::StreamId> streams_;
  runtime::StreamId copies_;

  std::mutex calls_;
  std::vector<runtime::Buffer> kept_;  ///< of others, until over
  mutable std::mutex buried_mutex_;    ///< of what follows: tensors go on any thread
  std::vector<runtime::Buffer> buried_;
  std::size_t buried_bytes_ = 0;
};

/// The elements of `whole` from number `begin` on under a shape, in the same memory, of the host or
/// of a device: what is written to one is seen in the other. UsageError where there are not so
/// many.
Tensor part_of(const Tensor& whole, std::int64_t begin, Shape shape);

/// "cuda" or "cuda:1": what was kept in the context, or else the process's object for the device
/// and the option `check-streams`, as long as somebody holds it. Nothing for "cpu". UsageError for
/// other names, DeviceError that says what is missing.
std::shared_ptr<Accelerator> open_accelerator(std::string_view name, const Context& context = {});
/// From now on the context's device of that name; open as long as the context.
void keep_in(const Context& context, const std::shared_ptr<Accelerator>& accelerator);
/// The CPU with two streams under the race checker, one object as long as somebody holds it, if the
/// context's option check-streams is set; else nothing.
std::shared_ptr<Accelerator> open_host(const Context& context);

}  // namespace segfuse::engine
