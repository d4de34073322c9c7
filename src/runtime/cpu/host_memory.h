#pragma once
// Host memory as a device's: addresses are reserved first and get memory later. What has none may
// not be touched (PROT_NONE), so that a use after unmap() faults.

#include <cstddef>
#include <cstdint>

#include "base/mutex.h"
#include "runtime/device.h"
#include "runtime/reservations.h"

namespace segfuse::runtime {

struct HostMemoryOptions {
  std::size_t granule = std::size_t{64} << 10;  ///< a multiple of the page size
  std::size_t limit = std::size_t{1} << 30;     ///< bytes that may be mapped
  /// All reservations lie in one of this size, first fit, so that their offsets in it depend on the
  /// calls alone; 0: each comes from the system.
  std::size_t address_space = 0;
  bool junk = false;  ///< fresh memory holds junk, as a device's does
};

class HostMemory {
 public:
  static constexpr std::uint8_t kJunk = 0xCB;

  explicit HostMemory(HostMemoryOptions options);
  ~HostMemory();
  HostMemory(const HostMemory&) = delete;
  HostMemory& operator=(const HostMemory&) = delete;

  std::size_t granule() const noexcept { return options_.granule; }
  /// Of the one reservation; null if there is none.
  std::byte* base() const noexcept { return space_; }
  std::byte* reserve(std::size_t bytes);
  void unreserve(std::byte* address, std::size_t bytes) noexcept;
  /// Throws NoMemory beyond the limit.
  void map(std::byte* address, std::size_t bytes);
  void unmap(std::byte* address, std::size_t bytes);
  DeviceMemory memory() const;
  std::size_t mapped() const;
  void set_limit(std::size_t bytes);
  bool is_mapped(const void* address, std::size_t bytes) const;
  /// Some of the range is this object's, be there memory or not.
  bool owns(const void* address, std::size_t bytes) const;

 private:
  std::byte* place(std::size_t bytes) const SEGFUSE_REQUIRES(mutex_);
  void remove_memory(std::byte* address, std::size_t bytes) noexcept SEGFUSE_REQUIRES(mutex_);

  mutable Mutex mutex_;
  HostMemoryOptions options_;
  std::byte* space_ = nullptr;
  Reservations reservations_ SEGFUSE_GUARDED_BY(mutex_);
};

}  // namespace segfuse::runtime
