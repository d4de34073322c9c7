#include "runtime/open_device.h"

#include <algorithm>
#include <exception>
#include <map>

#include "runtime/check/race_checker.h"
#include "runtime/cuda/cuda_device.h"
#include "runtime/cuda/driver.h"

namespace segfuse::runtime {

namespace {

/// Of the streams that a timeline can have, these at most are of others.
constexpr std::size_t kMaxAdopted = 40;

}  // namespace

OpenDevice::OpenDevice(std::unique_ptr<Device> device, std::shared_ptr<KernelLoader> kernels,
                       OpenDeviceOptions options)
    : device_(std::move(device)),
      checker_(options.check_streams
                   ? std::make_unique<RaceChecker>(*device_, *options.check_streams)
                   : nullptr),
      outer_(checker_ ? static_cast<Device*>(checker_.get()) : device_.get()),
      kernels_(std::move(kernels)),
      executor_(timeline_),
      heap_(this->device(), timeline_, options.heap) {}

OpenDevice::~OpenDevice() = default;

std::optional<StreamId> OpenDevice::adopt(StreamHandle stream) {
  const MutexLock lock(mutex_);
  if (std::ranges::find(adopted_, stream) != adopted_.end())
    return timeline_.adopt(device(), stream);
  if (adopted_.size() == kMaxAdopted) return {};
  adopted_.push_back(stream);
  return timeline_.adopt(device(), stream, "caller's " + std::to_string(adopted_.size()));
}

bool OpenDevice::is_captured(StreamHandle stream) const {
  return stream != StreamHandle() && stream != legacy_if_null(nullptr) &&
         device().is_captured(stream);
}

std::byte* OpenDevice::allocate(StreamHandle stream, std::size_t bytes) {
  std::optional<StreamId> known;
  if (!is_captured(stream)) known = adopt(stream);
  if (!known) return device().allocate_pooled(stream, bytes);
  Buffer buffer = heap_.allocate(bytes, *known, "workspace");
  std::byte* const address = buffer.address();
  const MutexLock lock(mutex_);
  held_.emplace(address, std::move(buffer));
  return address;
}

void OpenDevice::release(StreamHandle stream, std::byte* memory) noexcept {
  Buffer buffer;
  {
    const MutexLock lock(mutex_);
    const auto found = held_.find(memory);
    if (found != held_.end()) {
      buffer = std::move(found->second);
      held_.erase(found);
    }
  }
  if (!buffer) return device().release_pooled(stream, memory);
  try {
    if (const std::optional<StreamId> known = adopt(stream))
      buffer.record_stream(timeline_, *known);
    else
      device().synchronize(stream);
  } catch (const std::exception&) {
    // The stream is destroyed; adopt() has waited for what it did.
  }
}

std::shared_ptr<OpenDevice> open_cuda(int ordinal, bool check_streams) {
  static Mutex mutex;
  static auto& opened = *new std::map<std::pair<int, bool>, std::weak_ptr<OpenDevice>>();
  const MutexLock lock(mutex);
  std::weak_ptr<OpenDevice>& slot = opened[{ordinal, check_streams}];
  std::shared_ptr<OpenDevice> device = slot.lock();
  if (device == nullptr) {
    std::shared_ptr<KernelLoader> kernels = open_cuda_kernels(ordinal);
    OpenDeviceOptions options;
    if (check_streams) options.check_streams = CheckMode::kThrow;
    device = std::make_shared<OpenDevice>(open_cuda_device(ordinal), std::move(kernels), options);
    slot = device;
  }
  return device;
}

DeviceAccess access_cuda(int ordinal) {
  static Mutex mutex;
  // Never destroyed: at the end of the process the driver and the callers' streams go first.
  static auto& kept = *new std::map<int, std::shared_ptr<OpenDevice>>();
  const MutexLock lock(mutex);
  std::shared_ptr<OpenDevice>& device = kept[ordinal];
  if (device == nullptr) device = open_cuda(ordinal);
  return {std::shared_ptr<Device>(device, &device->device()), device->kernels(), device,
          legacy_if_null(nullptr)};
}

StreamHandle legacy_if_null(void* stream) {
  return StreamHandle(stream != nullptr ? stream : reinterpret_cast<void*>(cuda::kLegacyStream));
}

}  // namespace segfuse::runtime
