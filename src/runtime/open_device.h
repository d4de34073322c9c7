#pragma once
// A device as a process has it open: one owner of its memory, one clock of its streams, one loader
// of its kernels. Programs, the CRF and segfuse/memory.h all use a device through this.

#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/mutex.h"
#include "runtime/executor.h"
#include "runtime/kernels.h"
#include "runtime/memory/heap.h"
#include "runtime/memory/stream_memory.h"
#include "runtime/timeline.h"

namespace segfuse::runtime {

class RaceChecker;
enum class CheckMode;

struct OpenDeviceOptions {
  HeapOptions heap{};
  /// Every use of memory is checked for missing waits.
  std::optional<CheckMode> check_streams{};
};

class OpenDevice final : public StreamMemory {
 public:
  /// `kernels` launches on streams of `device`; null where there is no code for a device.
  OpenDevice(std::unique_ptr<Device> device, std::shared_ptr<KernelLoader> kernels,
             OpenDeviceOptions options = {});
  ~OpenDevice() override;
  OpenDevice(const OpenDevice&) = delete;
  OpenDevice& operator=(const OpenDevice&) = delete;

  /// The device, or the checker around it.
  Device& device() const { return *outer_; }
  RaceChecker* checker() const { return checker_.get(); }
  const std::shared_ptr<KernelLoader>& kernels() const { return kernels_; }
  Timeline& timeline() { return timeline_; }
  Executor& executor() { return executor_; }
  Heap& heap() { return heap_; }

  /// Somebody's stream as one of ours, as long as this object: nothing when there are too many.
  std::optional<StreamId> adopt(StreamHandle stream);

  /// Whether work on the stream becomes part of somebody's graph. The legacy default stream cannot
  /// be captured, and the driver refuses the question while another stream is.
  bool is_captured(StreamHandle stream) const;

  /// From the heap, but where `stream` is captured. A graph bakes addresses in and runs when the
  /// heap has long handed them out again, so its memory is from the device's pool; so is that of
  /// streams that are too many to adopt.
  std::byte* allocate(StreamHandle stream, std::size_t bytes) override;
  void release(StreamHandle stream, std::byte* memory) noexcept override;

 private:
  std::unique_ptr<Device> device_;
  std::unique_ptr<RaceChecker> checker_;
  Device* outer_;
  std::shared_ptr<KernelLoader> kernels_;
  Timeline timeline_;
  Executor executor_;
  Heap heap_;

  Mutex mutex_;
  std::vector<StreamHandle> adopted_ SEGFUSE_GUARDED_BY(mutex_);
  std::unordered_map<std::byte*, Buffer> held_ SEGFUSE_GUARDED_BY(mutex_);
};

/// The CUDA device with this ordinal: one object for each device and process as long as somebody
/// holds it; another one for those who check its streams. DeviceError says what is missing,
/// UsageError that there is no such device.
std::shared_ptr<OpenDevice> open_cuda(int ordinal, bool check_streams = false);
/// The same for work on streams of others, which may end before or after everything else: it stays
/// open until the process ends.
DeviceAccess access_cuda(int ordinal);

/// CUDA's legacy default stream by its name, where null is meant to be that.
StreamHandle legacy_if_null(void* stream);

}  // namespace segfuse::runtime
