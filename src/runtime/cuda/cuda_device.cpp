#include "runtime/cuda/cuda_device.h"

#include <fmt/core.h>
#include <unistd.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <set>
#include <vector>

#include "base/mutex.h"
#include "runtime/cuda/driver.h"
#include "runtime/cuda/shared_memory.h"
#include "runtime/reservations.h"
#include "segfuse/error.h"

namespace segfuse::runtime {
namespace {

using cuda::BesideCaptures;
using cuda::CurrentContext;
using cuda::DevicePtr;
using cuda::Driver;

DevicePtr number(const void* address) { return reinterpret_cast<DevicePtr>(address); }

bool no_memory(cuda::Result result) {
  return result == cuda::kOutOfMemory || result == cuda::kOsCallFailed;
}

/// Null, and the value that stands for another default stream in each thread. Who means the legacy
/// default stream has to say so (cuda::kLegacyStream).
void refuse_default(StreamHandle stream) {
  const auto value = reinterpret_cast<std::uintptr_t>(stream.get());
  if (value == 0 || value == 2)
    throw DeviceError("CUDA: there is no stream null (the legacy default stream is refused)");
}

class CudaDevice final : public Device {
 public:
  CudaDevice(const Driver& driver, int ordinal, CudaDeviceOptions options)
      : driver_(driver), limit_(options.limit), reservations_("CUDA", open(ordinal, options)) {}
  /// Waits for what is left, and gives back what was not.
  ~CudaDevice() override {
    const Current current(*this);
    for (StreamHandle stream : streams_) {
      driver_.stream_synchronize(stream.get());
      driver_.stream_destroy(stream.get());
    }
    for (const auto& [first, end] : reservations_.mapped().ranges())
      driver_.mem_unmap(first, end - first);
    for (const auto& [address, bytes] : reservations_.all())
      driver_.address_free(number(address), bytes);
  }
  CudaDevice(const CudaDevice&) = delete;
  CudaDevice& operator=(const CudaDevice&) = delete;

  std::string name() const override {
    char text[256] = {};
    driver_.device_name(text, sizeof text - 1, device_);
    return text;
  }

  StreamHandle create_stream() override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    cuda::Stream stream = nullptr;
    check(driver_.stream_create(&stream, cuda::kStreamNonBlocking), "creating a stream");
    const MutexLock lock(mutex_);
    return *streams_.insert(StreamHandle(stream)).first;
  }
  void destroy_stream(StreamHandle stream) noexcept override {
    const MutexLock lock(mutex_);
    if (streams_.erase(stream) == 0) return;
    const Current current(*this);
    driver_.stream_destroy(stream.get());
  }
  void synchronize(StreamHandle stream) override {
    refuse_default(stream);
    const CurrentContext current(driver_, context_);
    check(driver_.stream_synchronize(stream.get()), "work on the device");
  }

  std::uint64_t identity(StreamHandle stream) override {
    const CurrentContext current(driver_, context_);
    unsigned long long number = 0;
    check(driver_.stream_id(stream.get(), &number), "asking for a stream's number");
    return number;
  }
  void drain() override {
    const CurrentContext current(driver_, context_);
    check(driver_.context_synchronize(), "work on the device");
  }
  Work capture(int count,
               const std::function<void(std::span<const StreamHandle>)>& enqueue) override;

  bool idle(StreamHandle stream) override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    const cuda::Result result = driver_.stream_query(stream.get());
    if (result == cuda::kNotReady) return false;
    check(result, "work on the device");
    return true;
  }
  EventHandle create_event() override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    cuda::Event event = nullptr;
    check(driver_.event_create(&event, cuda::kEventDisableTiming), "creating an event");
    return EventHandle(event);
  }
  void destroy_event(EventHandle event) noexcept override {
    const Current current(*this);
    driver_.event_destroy(event.get());
  }
  void record(StreamHandle stream, EventHandle event) override {
    refuse_default(stream);
    const CurrentContext current(driver_, context_);
    check(driver_.event_record(event.get(), stream.get()), "recording an event");
  }
  void wait(StreamHandle stream, EventHandle event) override {
    refuse_default(stream);
    const CurrentContext current(driver_, context_);
    check(driver_.stream_wait(stream.get(), event.get(), 0), "making a stream wait");
  }
  bool query(EventHandle event) override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    const cuda::Result result = driver_.event_query(event.get());
    if (result == cuda::kNotReady) return false;
    check(result, "work on the device");
    return true;
  }
  void synchronize_event(EventHandle event) override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    check(driver_.event_synchronize(event.get()), "work on the device");
  }

  void launch(StreamHandle stream, Work work, std::span<const MemoryAccess>) override {
    refuse_default(stream);
    const CurrentContext current(driver_, context_);
    if (work.run) work.run(stream);
  }
  void copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) override {
    refuse_default(stream);
    if (bytes == 0) return;
    const CurrentContext current(driver_, context_);
    check(driver_.copy(number(to), number(from), bytes, stream.get()), "copying");
  }
  void fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) override {
    refuse_default(stream);
    if (bytes == 0) return;
    const CurrentContext current(driver_, context_);
    check(driver_.memset_async(number(at), value, bytes, stream.get()), "filling memory");
  }

  void read(StreamHandle stream, void* to, const void* from, std::size_t bytes) override {
    copy(stream, to, from, bytes);
    synchronize(stream);
  }
  bool is_captured(StreamHandle stream) override {
    const CurrentContext current(driver_, context_);
    int status = 0;
    check(driver_.stream_is_capturing(stream.get(), &status),
          "asking whether a stream is captured");
    return status != 0;
  }
  std::byte* allocate_pooled(StreamHandle stream, std::size_t bytes) override;
  void release_pooled(StreamHandle stream, std::byte* memory) noexcept override {
    const Current current(*this);
    driver_.free_async(number(memory), stream.get());
  }

  std::size_t granule() const override SEGFUSE_LOCKS_UNCHECKED {  // it does not change
    return reservations_.granule();
  }
  std::byte* reserve(std::size_t bytes) override {
    const MutexLock lock(mutex_);
    reservations_.check_reserve(bytes);
    const CurrentContext current(driver_, context_);
    DevicePtr address = 0;
    check(driver_.address_reserve(&address, bytes, 0, 0, 0), "reserving addresses");
    auto* const reserved = reinterpret_cast<std::byte*>(address);
    reservations_.add(reserved, bytes);
    return reserved;
  }
  void unreserve(std::byte* address, std::size_t bytes) noexcept override {
    const MutexLock lock(mutex_);
    if (!reservations_.remove(address, bytes)) return;
    const Current current(*this);
    driver_.address_free(number(address), bytes);
  }
  void map(std::byte* address, std::size_t bytes) override;
  void unmap(std::byte* address, std::size_t bytes) override {
    const MutexLock lock(mutex_);
    reservations_.check_unmap(address, bytes);
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    check(driver_.mem_unmap(number(address), bytes), "unmapping memory");
    reservations_.unmap(address, bytes);
  }
  DeviceMemory memory() override {
    const MutexLock lock(mutex_);
    const CurrentContext current(driver_, context_);
    return memory_of_device();
  }

  std::byte* allocate_pinned(std::size_t bytes) override {
    const auto pages = static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES));
    if (bytes / static_cast<std::size_t>(sysconf(_SC_PAGESIZE)) > pages) throw NoMemory();
    const CurrentContext current(driver_, context_);
    void* memory = nullptr;
    const cuda::Result result = driver_.host_allocate(&memory, bytes, cuda::kHostPortable);
    if (no_memory(result)) throw NoMemory();
    check(result, "allocating pinned host memory");
    return static_cast<std::byte*>(memory);
  }
  void release_pinned(std::byte* address, std::size_t) noexcept override {
    const Current current(*this);
    driver_.host_free(address);
  }

  std::shared_ptr<std::byte> allocate_shared(std::size_t bytes) override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    return cuda::allocate_shared(driver_, context_, bytes);
  }
  std::string share(const std::shared_ptr<std::byte>& memory) override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    return cuda::share(driver_, device_, memory);
  }
  std::shared_ptr<std::byte> reach_shared(const std::string& shared) override {
    const CurrentContext current(driver_, context_);
    const BesideCaptures beside(driver_);
    return cuda::reach_shared(driver_, context_, device_, shared);
  }

 private:
  /// As CurrentContext, where nothing may be thrown.
  class Current {
   public:
    explicit Current(const CudaDevice& device) : driver_(device.driver_) {
      pushed_ = driver_.context_push(device.context_) == 0;
    }
    ~Current() {
      cuda::Context ignored = nullptr;
      if (pushed_) driver_.context_pop(&ignored);
    }
    Current(const Current&) = delete;
    Current& operator=(const Current&) = delete;

   private:
    const Driver& driver_;
    bool pushed_ = false;
  };

  void capture_on(std::span<const StreamHandle> streams,
                  const std::function<void(std::span<const StreamHandle>)>& enqueue);
  void check(cuda::Result result, const char* what) const { cuda::check(driver_, result, what); }
  std::size_t open(int ordinal, const CudaDeviceOptions& options);
  DeviceMemory memory_of_device() const SEGFUSE_REQUIRES(mutex_);
  cuda::Result map_granule(DevicePtr address) const;

  const Driver& driver_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
  cuda::MemProperties properties_;
  std::size_t limit_;
  Mutex mutex_;  ///< guards what follows, and what is mapped
  std::set<StreamHandle> streams_ SEGFUSE_GUARDED_BY(mutex_);
  cuda::MemPool pool_ SEGFUSE_GUARDED_BY(mutex_) = nullptr;  ///< made at its first use, and kept
  Reservations reservations_ SEGFUSE_GUARDED_BY(mutex_);
};

/// Opens the device's context; returns the granule.
std::size_t CudaDevice::open(int ordinal, const CudaDeviceOptions& options) {
  check(driver_.device_get(&device_, ordinal), "opening the device");
  int can_map = 0;
  check(driver_.device_attribute(&can_map, static_cast<int>(cuda::DeviceAttribute::kVirtualMemory),
                                 device_),
        "a device query");
  if (can_map == 0)
    throw DeviceError(
        fmt::format("CUDA: device {} ({}) cannot map memory to addresses; a newer driver may help",
                    ordinal, name()));
  check(driver_.primary_context(&context_, device_), "opening the device's context");
  const CurrentContext current(driver_, context_);
  properties_.location.id = device_;
  std::size_t unit = 0;
  check(driver_.granularity(&unit, &properties_, cuda::kGranularityMinimum),
        "asking how memory is mapped");
  return (std::max<std::size_t>(options.granule, 1) + unit - 1) / unit * unit;
}

/// Enqueues while the first stream is captured; the others begin and end with it.
void CudaDevice::capture_on(std::span<const StreamHandle> streams,
                            const std::function<void(std::span<const StreamHandle>)>& enqueue) {
  std::vector<EventHandle> events;
  const auto order = [&](StreamHandle before, StreamHandle after) {
    events.push_back(create_event());
    record(before, events.back());
    wait(after, events.back());
  };
  try {
    for (const StreamHandle stream : streams.subspan(1)) order(streams[0], stream);
    enqueue(streams);
    for (const StreamHandle stream : streams.subspan(1)) order(stream, streams[0]);
  } catch (...) {
    for (const EventHandle event : events) destroy_event(event);
    throw;
  }
  for (const EventHandle event : events) destroy_event(event);
}

Work CudaDevice::capture(int count,
                         const std::function<void(std::span<const StreamHandle>)>& enqueue) {
  if (driver_.begin_capture == nullptr) return {};  // another driver's
  const CurrentContext current(driver_, context_);
  std::vector<StreamHandle> streams;
  for (int i = 0; i < count; ++i) streams.push_back(create_stream());
  cuda::Graph graph = nullptr;
  std::exception_ptr failure;
  check(driver_.begin_capture(streams[0].get(), cuda::kCaptureOfThisThread), "beginning a capture");
  try {
    capture_on(streams, enqueue);
  } catch (...) {
    failure = std::current_exception();
  }
  const cuda::Result ended = driver_.end_capture(streams[0].get(), &graph);
  for (const StreamHandle stream : streams) destroy_stream(stream);
  if (failure != nullptr) {
    if (graph != nullptr) driver_.graph_destroy(graph);
    std::rethrow_exception(failure);
  }
  check(ended, "ending a capture");
  cuda::GraphExec ready = nullptr;
  const cuda::Result made = driver_.graph_instantiate(&ready, graph, 0);
  driver_.graph_destroy(graph);
  check(made, "making a graph ready");
  const auto owned = std::shared_ptr<void>(ready, [this](cuda::GraphExec gone) {
    const Current context(*this);
    driver_.graph_exec_destroy(gone);
  });
  return {"graph", [this, owned](StreamHandle stream) {
            check(driver_.graph_launch(owned.get(), stream.get()), "launching a graph");
          }};
}

std::byte* CudaDevice::allocate_pooled(StreamHandle stream, std::size_t bytes) {
  const CurrentContext current(driver_, context_);
  const cuda::MemPool pool = [this] {
    const MutexLock lock(mutex_);
    if (pool_ == nullptr) {
      cuda::MemPoolProps properties;
      properties.location_id = device_;
      check(driver_.pool_create(&pool_, &properties), "creating a memory pool");
      std::uint64_t keep_all = ~std::uint64_t{0};
      check(driver_.pool_set(pool_, cuda::kReleaseThreshold, &keep_all),
            "setting up a memory pool");
    }
    return pool_;
  }();
  DevicePtr memory = 0;
  check(driver_.pool_allocate(&memory, bytes, pool, stream.get()), "allocating pooled memory");
  return reinterpret_cast<std::byte*>(memory);
}

DeviceMemory CudaDevice::memory_of_device() const {
  DeviceMemory memory;
  check(driver_.mem_info(&memory.free, &memory.total), "asking for free memory");
  if (limit_ != 0) {
    const std::size_t used = reservations_.mapped().bytes();
    memory.total = std::min(memory.total, limit_);
    memory.free = std::min(memory.free, limit_ - std::min(used, limit_));
  }
  return memory;
}

/// The handle is let go at once: the memory lives as long as it is mapped.
cuda::Result CudaDevice::map_granule(DevicePtr address) const {
  cuda::MemHandle handle = 0;
  cuda::Result result = driver_.mem_create(&handle, granule(), &properties_, 0);
  if (result != 0) return result;
  result = driver_.mem_map(address, granule(), 0, handle, 0);
  const cuda::Result released = driver_.mem_release(handle);
  if (result == 0 && released != 0) driver_.mem_unmap(address, granule());
  return result != 0 ? result : released;
}

void CudaDevice::map(std::byte* address, std::size_t bytes) {
  const MutexLock lock(mutex_);
  reservations_.check_map(address, bytes);
  const CurrentContext current(driver_, context_);
  const BesideCaptures beside(driver_);
  if (bytes > memory_of_device().free) throw NoMemory();
  cuda::MemAccess access;
  access.location = properties_.location;
  cuda::Result result = 0;
  std::size_t mapped = 0;
  for (; mapped < bytes && result == 0; mapped += result == 0 ? granule() : 0)
    result = map_granule(number(address) + mapped);
  if (result == 0) result = driver_.mem_set_access(number(address), bytes, &access, 1);
  if (result == 0) {
    reservations_.map(address, bytes);
    return;
  }
  if (mapped != 0) driver_.mem_unmap(number(address), mapped);
  if (no_memory(result)) throw NoMemory();
  check(result, "mapping memory");
}

}  // namespace

std::unique_ptr<Device> open_cuda_device(const Driver& driver, int ordinal,
                                         CudaDeviceOptions options) {
  int count = 0;
  cuda::check(driver, driver.device_count(&count), "counting devices");
  if (ordinal < 0 || ordinal >= count)
    throw UsageError(
        fmt::format("CUDA: there is no device {}; the driver sees {}", ordinal, count));
  return std::make_unique<CudaDevice>(driver, ordinal, options);
}

std::unique_ptr<Device> open_cuda_device(int ordinal, CudaDeviceOptions options) {
  return open_cuda_device(cuda::driver(), ordinal, options);
}

}  // namespace segfuse::runtime
