#include "runtime/cpu/cpu_device.h"

#include <unistd.h>

#include <cstring>
#include <new>

namespace segfuse::runtime {
namespace {

constexpr std::align_val_t kPinnedAlignment{4096};

std::size_t physical_memory() {
  return static_cast<std::size_t>(sysconf(_SC_PHYS_PAGES)) *
         static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
}

HostMemoryOptions memory_options(const CpuDeviceOptions& options) {
  HostMemoryOptions memory;
  memory.granule = options.granule;
  memory.limit = options.limit == 0 ? physical_memory() : options.limit;
  return memory;
}

}  // namespace

CpuDevice::CpuDevice(CpuDeviceOptions options) : memory_(memory_options(options)) {}

void CpuDevice::launch(StreamHandle stream, Work work, std::span<const MemoryAccess>) {
  streams_.enqueue(stream, {std::move(work.name), std::move(work.run), {}});
}

void CpuDevice::copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) {
  if (bytes == 0) return;
  streams_.enqueue(stream, {"copy", [=](StreamHandle) { std::memcpy(to, from, bytes); }, {}});
}

void CpuDevice::fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) {
  if (bytes == 0) return;
  streams_.enqueue(stream, {"fill", [=](StreamHandle) { std::memset(at, value, bytes); }, {}});
}

std::byte* CpuDevice::allocate_pinned(std::size_t bytes) {
  if (bytes > physical_memory()) throw NoMemory();
  void* const memory = ::operator new(bytes, kPinnedAlignment, std::nothrow);
  if (memory == nullptr) throw NoMemory();
  return static_cast<std::byte*>(memory);
}

void CpuDevice::release_pinned(std::byte* address, std::size_t) noexcept {
  ::operator delete(address, kPinnedAlignment);
}

}  // namespace segfuse::runtime
