#include "support/system/fake_cuda.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

#include "runtime/cpu/stream_threads.h"

namespace segfuse::test {
namespace {

using runtime::EventHandle;
using runtime::StreamHandle;
using runtime::StreamWork;
using namespace runtime::cuda;

constexpr Result kInvalidValue = 1;
constexpr Result kInvalidContext = 201;

}  // namespace

struct FakeCuda::State {
  struct Memory {
    std::size_t bytes = 0;
    int mappings = 0;
    bool held = true;  ///< by its handle
  };
  struct Mapping {
    std::size_t bytes = 0;
    MemHandle memory = 0;
  };

  Driver driver{};
  std::mutex mutex;
  std::size_t total = 0;
  std::uint64_t calls = 0;
  std::uint64_t fail_in = 0;
  Result failure = 0;
  std::map<DevicePtr, std::size_t> reservations;
  std::map<MemHandle, Memory> memories;
  std::map<DevicePtr, Mapping> mappings;
  std::map<void*, std::size_t> registered;  ///< host memory
  std::map<DevicePtr, std::size_t> shared;  ///< memory with handles
  MemHandle next_handle = 1;
  runtime::StreamThreads streams;

  std::size_t used() const {
    std::size_t bytes = 0;
    for (const auto& [handle, memory] : memories) bytes += memory.bytes;
    for (const auto& [address, size] : shared) bytes += size;
    return bytes;
  }
  void drop(MemHandle handle) {
    const Memory& memory = memories.at(handle);
    if (memory.mappings == 0 && !memory.held) memories.erase(handle);
  }
};

namespace {

FakeCuda::State* current = nullptr;
thread_local int contexts = 0;

FakeCuda::State& state() { return *current; }
void* pointer(DevicePtr address) { return reinterpret_cast<void*>(address); }

/// What a call returns before it does anything.
Result begin_call() {
  if (contexts == 0) return kInvalidContext;
  const std::lock_guard lock(state().mutex);
  ++state().calls;
  return state().fail_in != 0 && --state().fail_in == 0 ? state().failure : 0;
}

template <class Body>
Result call(const Body& body) {
  if (const Result result = begin_call(); result != 0) return result;
  try {
    return body();
  } catch (const Error&) {
    return kInvalidValue;
  }
}

void add_device(Driver& d) {
  d.device_count = [](int* count) { return *count = 1, 0; };
  d.device_get = [](runtime::cuda::Device* device, int ordinal) { return *device = ordinal, 0; };
  d.device_name = [](char* text, int, runtime::cuda::Device) {
    std::strcpy(text, "fake");
    return 0;
  };
  d.device_attribute = [](int* value, int, runtime::cuda::Device) { return *value = 1, 0; };
  d.primary_context = [](Context* context, runtime::cuda::Device) { return *context = current, 0; };
  d.context_push = [](Context) { return ++contexts, 0; };
  d.context_pop = [](Context*) { return --contexts, 0; };
  d.error_name = [](Result, const char** text) { return *text = "FAKE_ERROR", 0; };
  d.error_string = [](Result, const char** text) { return *text = "as the test wants it", 0; };
}

void add_streams(Driver& d) {
  d.stream_create = [](Stream* stream, unsigned flags) {
    return call([&] {
      *stream = state().streams.create_stream().get();
      return flags == kStreamNonBlocking ? 0 : kInvalidValue;
    });
  };
  d.stream_destroy = [](Stream stream) {
    return state().streams.destroy_stream(StreamHandle(stream)), 0;
  };
  d.stream_id = [](Stream stream, unsigned long long* number) {
    return call([&] { return *number = state().streams.identity(StreamHandle(stream)), 0; });
  };
  d.stream_synchronize = [](Stream stream) {
    return call([&] { return state().streams.synchronize(StreamHandle(stream)), 0; });
  };
  d.stream_query = [](Stream stream) {
    return call([&] { return state().streams.idle(StreamHandle(stream)) ? 0 : kNotReady; });
  };
  d.context_synchronize = [] { return call([] { return state().streams.drain(), 0; }); };
  d.stream_wait = [](Stream stream, Event event, unsigned) {
    return call([&] { return state().streams.wait(StreamHandle(stream), EventHandle(event)), 0; });
  };
  d.event_create = [](Event* event, unsigned) {
    return call([&] { return *event = state().streams.create_event().get(), 0; });
  };
  d.event_destroy = [](Event event) {
    return state().streams.destroy_event(EventHandle(event)), 0;
  };
  d.event_record = [](Event event, Stream stream) {
    return call(
        [&] { return state().streams.record(StreamHandle(stream), EventHandle(event)), 0; });
  };
  d.event_query = [](Event event) {
    return call([&] { return state().streams.query(EventHandle(event)) ? 0 : kNotReady; });
  };
  d.event_synchronize = [](Event event) {
    return call([&] { return state().streams.synchronize_event(EventHandle(event)), 0; });
  };
}

Result enqueue(Stream stream, std::function<void()> work) {
  return call([&] {
    state().streams.enqueue(StreamHandle(stream), {"", [work](StreamHandle) { work(); }, {}});
    return 0;
  });
}

void add_work(Driver& d) {
  d.copy = [](DevicePtr to, DevicePtr from, std::size_t bytes, Stream stream) {
    return enqueue(stream, [=] { std::memcpy(pointer(to), pointer(from), bytes); });
  };
  d.memset_async = [](DevicePtr at, unsigned char value, std::size_t bytes, Stream stream) {
    return enqueue(stream, [=] { std::memset(pointer(at), value, bytes); });
  };
  d.host_allocate = [](void** memory, std::size_t bytes, unsigned) {
    return call([&] { return *memory = std::aligned_alloc(4096, (bytes + 4095) & ~4095UL), 0; });
  };
  d.host_free = [](void* memory) { return std::free(memory), 0; };
  d.host_register = [](void* memory, std::size_t bytes, unsigned) {
    return call([&] {
      const std::lock_guard lock(state().mutex);
      return state().registered.emplace(memory, bytes).second ? 0 : kInvalidValue;
    });
  };
  d.host_unregister = [](void* memory) {
    if (contexts == 0) return kInvalidContext;
    const std::lock_guard lock(state().mutex);
    return state().registered.erase(memory) == 1 ? 0 : kInvalidValue;
  };
}

Result map_memory(DevicePtr address, std::size_t bytes, MemHandle handle) {
  const std::lock_guard lock(state().mutex);
  auto& memory = state().memories.at(handle);
  if (memory.bytes != bytes || state().mappings.contains(address)) return kInvalidValue;
  ++memory.mappings;
  state().mappings[address] = {bytes, handle};
  return 0;
}

Result unmap_memory(DevicePtr address, std::size_t bytes) {
  const std::lock_guard lock(state().mutex);
  auto& mappings = state().mappings;
  DevicePtr end = address;
  for (auto next = mappings.find(address); next != mappings.end() && next->first == end; ++next)
    if (end < address + bytes) end += next->second.bytes;
  if (end != address + bytes) return kInvalidValue;
  for (auto next = mappings.find(address); next != mappings.end() && next->first < end;) {
    --state().memories.at(next->second.memory).mappings;
    state().drop(next->second.memory);
    next = mappings.erase(next);
  }
  madvise(pointer(address), bytes, MADV_DONTNEED);
  mprotect(pointer(address), bytes, PROT_NONE);
  return 0;
}

void add_memory(Driver& d) {
  d.granularity = [](std::size_t* bytes, const MemProperties*, int) {
    return *bytes = FakeCuda::kUnit, 0;
  };
  d.address_reserve = [](DevicePtr* address, std::size_t bytes, std::size_t, DevicePtr,
                         unsigned long long) {
    return call([&] {
      void* const found =
          mmap(nullptr, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (found == MAP_FAILED) return FakeCuda::kOutOfMemory;
      *address = reinterpret_cast<DevicePtr>(found);
      const std::lock_guard lock(state().mutex);
      state().reservations[*address] = bytes;
      return 0;
    });
  };
  d.address_free = [](DevicePtr address, std::size_t bytes) {
    const std::lock_guard lock(state().mutex);
    if (state().reservations.erase(address) == 0) return kInvalidValue;
    return munmap(pointer(address), bytes);
  };
  d.mem_create = [](MemHandle* handle, std::size_t bytes, const MemProperties*,
                    unsigned long long) {
    return call([&] {
      const std::lock_guard lock(state().mutex);
      if (bytes % FakeCuda::kUnit != 0) return kInvalidValue;
      if (bytes > state().total - state().used()) return FakeCuda::kOutOfMemory;
      *handle = state().next_handle++;
      state().memories[*handle].bytes = bytes;
      return 0;
    });
  };
  d.mem_release = [](MemHandle handle) {
    const std::lock_guard lock(state().mutex);
    state().memories.at(handle).held = false;
    return state().drop(handle), 0;
  };
  d.mem_map = [](DevicePtr address, std::size_t bytes, std::size_t, MemHandle handle,
                 unsigned long long) {
    return call([&] { return map_memory(address, bytes, handle); });
  };
  d.mem_set_access = [](DevicePtr address, std::size_t bytes, const MemAccess*, std::size_t) {
    return call([&] { return mprotect(pointer(address), bytes, PROT_READ | PROT_WRITE); });
  };
  d.mem_unmap = [](DevicePtr address, std::size_t bytes) {
    if (contexts == 0) return kInvalidContext;
    return unmap_memory(address, bytes);
  };
  d.mem_info = [](std::size_t* free, std::size_t* total) {
    return call([&] {
      const std::lock_guard lock(state().mutex);
      *total = state().total;
      *free = state().total - state().used();
      return 0;
    });
  };
}

/// Plain memory, and its handles, which its own process may not open.
void add_shared_memory(Driver& d) {
  d.mem_allocate = [](DevicePtr* address, std::size_t bytes) {
    return call([&] {
      const std::lock_guard lock(state().mutex);
      if (bytes > state().total - state().used()) return FakeCuda::kOutOfMemory;
      *address = reinterpret_cast<DevicePtr>(std::aligned_alloc(4096, bytes));
      state().shared[*address] = bytes;
      return 0;
    });
  };
  d.mem_free = [](DevicePtr address) {
    if (contexts == 0) return kInvalidContext;
    const std::lock_guard lock(state().mutex);
    if (state().shared.erase(address) == 0) return kInvalidValue;
    return std::free(pointer(address)), 0;
  };
  d.memset_now = [](DevicePtr at, unsigned char value, std::size_t bytes) {
    return call([&] { return std::memset(pointer(at), value, bytes), 0; });
  };
  d.share_memory = [](IpcHandle*, DevicePtr address) {
    return call([&] {
      const std::lock_guard lock(state().mutex);
      return state().shared.contains(address) ? 0 : kInvalidValue;
    });
  };
  d.reach_context = [](Context, unsigned) { return call([] { return kReachedBefore; }); };
  d.open_shared = [](DevicePtr*, IpcHandle, unsigned) {
    return call([] { return kInvalidValue; });
  };
  d.close_shared = [](DevicePtr) { return kInvalidValue; };
}

}  // namespace

Result FakeCuda::host_function(Stream stream, void (*function)(void*), void* data) {
  return enqueue(stream, [=] { function(data); });
}

FakeCuda::FakeCuda(std::size_t memory) : state_(std::make_unique<State>()) {
  state_->total = memory;
  add_device(state_->driver);
  add_streams(state_->driver);
  add_work(state_->driver);
  add_memory(state_->driver);
  add_shared_memory(state_->driver);
  current = state_.get();
}

FakeCuda::~FakeCuda() {
  for (const auto& [address, bytes] : state_->reservations) munmap(pointer(address), bytes);
  current = nullptr;
}

const Driver& FakeCuda::driver() const { return state_->driver; }

std::size_t FakeCuda::registered_host_bytes() const {
  const std::lock_guard lock(state_->mutex);
  std::size_t total = 0;
  for (const auto& [memory, bytes] : state_->registered) total += bytes;
  return total;
}

void FakeCuda::fail_at(std::uint64_t k, Result result) {
  const std::lock_guard lock(state_->mutex);
  state_->fail_in = k;
  state_->failure = result;
}

std::uint64_t FakeCuda::calls() const {
  const std::lock_guard lock(state_->mutex);
  return state_->calls;
}

std::size_t FakeCuda::used() const {
  const std::lock_guard lock(state_->mutex);
  return state_->used();
}

std::size_t FakeCuda::reservations() const {
  const std::lock_guard lock(state_->mutex);
  return state_->reservations.size();
}

}  // namespace segfuse::test
