#pragma once
// The addresses of a slab: [guard | payload | guard]. Guards cannot be touched, so an overrun
// faults, and the kernel never joins the payload with somebody else's mapping.

#include <cstddef>
#include <span>
#include <string>
#include <string_view>

namespace segfuse::comm {

/// What a forked child gets of a slab.
enum class ForkPolicy {
  kAbsent,  ///< nothing: touching it faults (MADV_DONTFORK, once, before any pin)
  kShared,  ///< the same memory
  /// A copy, which the kernel makes at once where it is pinned, at seconds a GiB. Where something
  /// pins, only with a kernel that is seen to do so (copy_on_fork.h), and up to kMostCopied.
  kCopied,
};

/// Where the memory came from.
enum class Backing { kFile, kHugeFile, kTransparentHuge, kPrivate };
std::string_view name_of(Backing backing) noexcept;

struct SlabOptions {
  std::string owner;      ///< stands in /proc/PID/maps as "reg:OWNER"
  std::size_t bytes = 0;  ///< rounded up to whole pages
  ForkPolicy fork = ForkPolicy::kAbsent;
  bool huge = false;  ///< large pages: from the pool if it has them, else transparent ones
  int numa = -1;      ///< the node whose memory is taken while it has some; -1: any
};

/// Of all slabs of a registry that fork() copies, together.
inline constexpr std::size_t kMostCopied = std::size_t{256} << 20;

/// Owns the mapping; unmaps it, except in a forked child, where it is not there.
class Mapping {
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
