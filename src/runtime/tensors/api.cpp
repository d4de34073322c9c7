// What segfuse/memory.h declares, on the devices that a process has open.

#include <array>
#include <atomic>
#include <memory>
#include <string>

#include "base/mutex.h"
#include "runtime/tensors/tensor_memory.h"
#include "segfuse/error.h"
#include "segfuse/memory.h"

namespace segfuse {
namespace runtime {
namespace {

constexpr std::size_t kMaxDevices = 64;

struct Opened {
  explicit Opened(int ordinal) : device(open_cuda(ordinal)), memory(*device) {}
  std::shared_ptr<OpenDevice> device;
  TensorMemory memory;
};

/// Never destroyed: at the end of the process the driver and the library's streams go first.
std::array<std::atomic<Opened*>, kMaxDevices> opened{};
std::atomic<void (*)(const char*)> raise_out_of_memory{nullptr};
Mutex opening;
std::size_t limit SEGFUSE_GUARDED_BY(opening) = 0;

template <class Do>
void for_each_opened(Do what) {
  for (const std::atomic<Opened*>& slot : opened)
    if (Opened* const one = slot.load(std::memory_order_acquire)) what(one->memory);
}

}  // namespace

TensorMemory& cuda_tensor_memory(int ordinal) {
  if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= kMaxDevices)
    throw UsageError("device " + std::to_string(ordinal) + ": expected 0 to " +
                     std::to_string(kMaxDevices - 1));
  std::atomic<Opened*>& slot = opened[static_cast<std::size_t>(ordinal)];
  if (Opened* const one = slot.load(std::memory_order_acquire)) return one->memory;
  const MutexLock lock(opening);
  if (Opened* const one = slot.load(std::memory_order_acquire)) return one->memory;
  auto made = std::make_unique<Opened>(ordinal);
  if (limit != 0) made->device->heap().set_limits(0, limit);
  slot.store(made.get(), std::memory_order_release);
  return made.release()->memory;
}

}  // namespace runtime

namespace tensor_memory {

using runtime::cuda_tensor_memory;
using runtime::legacy_if_null;
using runtime::TensorMemory;

void* allocate(int device, std::size_t bytes, void* stream) {
  try {
    return cuda_tensor_memory(device).allocate(bytes, legacy_if_null(stream));
  } catch (const runtime::OutOfDeviceMemory& error) {
    // Programs look for these words of PyTorch, and then try less.
    const runtime::OutOfDeviceMemory told(std::string("CUDA out of memory. ") + error.what());
    if (const auto raise = runtime::raise_out_of_memory.load()) raise(told.what());
    throw told;
  }
}

void release(int device, void* address) noexcept {
  if (address != nullptr) cuda_tensor_memory(device).release(static_cast<std::byte*>(address));
}

void record_stream(const void* address, void* stream) {
  const auto* const first = static_cast<const std::byte*>(address);
  runtime::for_each_opened([&](TensorMemory& memory) {
    if (memory.holds(first)) memory.record_stream(first, legacy_if_null(stream));
  });
}

void enter(int device, void* stream) { cuda_tensor_memory(device).enter(legacy_if_null(stream)); }
void mark(int device, void* stream) { cuda_tensor_memory(device).mark(legacy_if_null(stream)); }
void mark_all() {
  runtime::for_each_opened([](TensorMemory& memory) { memory.mark_all(); });
}

void on_out_of_memory(void (*raise)(const char* message)) { runtime::raise_out_of_memory = raise; }

void set_limit(std::size_t bytes) {
  const MutexLock lock(runtime::opening);
  runtime::limit = bytes;
  runtime::for_each_opened(
      [&](TensorMemory& memory) { memory.device().heap().set_limits(0, bytes); });
}

void set_limit(int device, std::size_t bytes) {
  cuda_tensor_memory(device).device().heap().set_limits(0, bytes);
}

void set_fraction(int device, double part) {
  const auto total =
      static_cast<double>(cuda_tensor_memory(device).device().device().memory().total);
  set_limit(device, static_cast<std::size_t>(total * part));
}

void trim() {
  runtime::for_each_opened([](TensorMemory& memory) { memory.trim(); });
}

void begin_capture(int device, PoolId pool) { cuda_tensor_memory(device).begin_capture(pool); }
void end_capture(int device) { cuda_tensor_memory(device).end_capture(); }
void release_pool(int device, PoolId pool) noexcept {
  cuda_tensor_memory(device).release_pool(pool);
}
void abandon_captures() {
  runtime::for_each_opened([](TensorMemory& memory) { memory.end_capture(true); });
}

Statistics statistics(int device) {
  const runtime::Heap& heap = cuda_tensor_memory(device).device().heap();
  const runtime::HeapStatistics now = heap.statistics();
  return {now.mapped_bytes,    now.peak_mapped_bytes, now.live_bytes,
          now.requested_bytes, now.live_blocks,       heap.hard_limit(),
          now.grown,           now.added_waits,       now.host_waits};
}

void reset_peaks(int device) { cuda_tensor_memory(device).device().heap().reset_peaks(); }

void keep_history(int device, std::size_t events) {
  cuda_tensor_memory(device).device().heap().keep_history(events);
}

}  // namespace tensor_memory
}  // namespace segfuse
