#pragma once
// The addresses of a slab: [guard | payload | guard]. Guards cannot be touched, so an overrun
// faults, and the kernel never joins the payload with somebody else's mapping.

#include <cstddef>
#include <span>

#include "segfuse/registered.h"

namespace segfuse::comm {

/// glibc: where an arena begins.
inline constexpr std::uintptr_t kArena = std::uintptr_t{64} << 20;

/// Owns the mapping; unmaps it, except in a forked child, where it is not there.
class [[nodiscard]] Mapping {
 public:
  /// Throws UsageError for sizes that cannot be, DeviceError when the system refuses; nothing stays
  /// then.
  explicit Mapping(const SlabOptions& options);
  ~Mapping();
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;

  std::span<std::byte> payload() const { return payload_; }
  Backing backing() const { return backing_; }

 private:
  bool map_file(const SlabOptions& options, std::byte* at, unsigned flags);
  bool map_private(std::byte* at, bool huge);
  void map_payload(const SlabOptions& options, std::byte* at);
  void place_near(const SlabOptions& options) const;

  std::span<std::byte> whole_;
  std::span<std::byte> payload_;
  Backing backing_ = Backing::kFile;
};

std::size_t page_bytes() noexcept;

}  // namespace segfuse::comm
