#pragma once
// Registered memory: memory that devices reach by themselves, in slabs of whole pages that are ours
// alone. A slab is kept from forked children as a whole, when it is made, so no page of anybody
// else is, the number of mappings does not grow with registrations, and fork() has nothing to copy.
//
// A slab is pinned as a whole too: at its first registration, until the last one is gone.
// Registrations are views of it, to the byte, and may overlap.
//
// In a forked child every function throws ForkedChildError, and destructors do nothing.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "comm/registered/backends/backend.h"
#include "comm/registered/mapping.h"
#include "comm/registered/range_map.h"

namespace segfuse::comm {

struct SlabState;
struct RegistryState;

/// A registered range; keeps its slab alive. For one thread at a time.
class Registration {
 public:
  Registration() = default;
  Registration(Registration&&) noexcept = default;
  Registration& operator=(Registration&& other) noexcept;
  ~Registration();
  explicit operator bool() const noexcept { return slab_ != nullptr; }

  std::byte* address() const;
  std::size_t bytes() const noexcept { return bytes_; }
  /// Of the pin behind it; key() and descriptor() name the whole slab.
  const Pin& pin() const;
  std::span<std::byte> slab() const;
  /// UsageError when there is nothing to release (any more).
  void release();

 private:
  friend class Slab;
  friend class Registry;
  Registration(std::shared_ptr<SlabState> slab, std::size_t offset, std::size_t bytes)
      : slab_(std::move(slab)), offset_(offset), bytes_(bytes) {}
  static Registration make(const std::shared_ptr<SlabState>& slab, std::size_t offset,
                           std::size_t bytes);
  void drop() noexcept;

  std::shared_ptr<SlabState> slab_;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
};

/// A handle of a slab; the memory goes with the last of it and its registrations. Any thread.
class Slab {
 public:
  Slab() = default;
  Slab(Slab&&) noexcept = default;
  Slab& operator=(Slab&&) noexcept = default;
  explicit operator bool() const noexcept { return state_ != nullptr; }

  std::byte* data() const;
  std::size_t bytes() const;
  const std::string& owner() const;
  Backing backing() const;

  /// UsageError for ranges that are empty or outside; DeviceError when it cannot be pinned (then
  /// nothing has changed).
  Registration register_range(std::size_t offset, std::size_t bytes);
  /// Is a byte of the range registered so many times?
  bool registered(std::size_t offset, std::size_t bytes, std::uint32_t times = 1) const;
  /// What is registered, and how often.
  std::vector<CountedRange> registrations() const;
  bool pinned() const;

 private:
  friend class Registry;
  explicit Slab(std::shared_ptr<SlabState> state) : state_(std::move(state)) {}
  std::shared_ptr<SlabState> state_;
};

/// Which way a bounced copy goes, as the device sees it.
enum class Direction { kDeviceReads, kDeviceWrites, kBoth };

/// Foreign memory through a slab: the device sees the copy.
class Bounce {
 public:
  Bounce() = default;
  Bounce(Bounce&&) noexcept = default;
  Bounce& operator=(Bounce&&) noexcept = default;
  const Registration& registration() const { return registration_; }
  /// Before the device reads; after it has written. UsageError for the other direction.
  void to_device();
  void from_device();

 private:
  friend class Registry;
  Bounce(std::span<std::byte> foreign, Direction direction, Registration registration)
      : foreign_(foreign), direction_(direction), registration_(std::move(registration)) {}
  std::span<std::byte> foreign_;
  Direction direction_ = Direction::kBoth;
  Registration registration_;
};

struct RegistryCounts {
  std::size_t slabs = 0;
  std::size_t bytes = 0;         ///< of slabs
  std::size_t pinned_bytes = 0;  ///< of slabs with registrations
};

/// Makes slabs over one back end, and knows them by address. Any thread.
class Registry {
 public:
  explicit Registry(std::shared_ptr<Backend> backend = make_no_backend());
  Registry(const Registry&) = delete;
  Registry& operator=(const Registry&) = delete;

  Slab make_slab(const SlabOptions& options);

  /// Memory by address: a range of a slab of ours is registered as it is. Any other is refused with
  /// a UsageError that says whose page it is and what to do: we never change how the kernel treats
  /// memory that is not ours.
  Registration register_address(void* address, std::size_t bytes);
  /// The same, but other memory goes through a slab. Refused is only what cannot be copied: ranges
  /// that are not mapped, or not readable, or not writable where the device writes.
  Bounce bounce(void* address, std::size_t bytes, Direction direction = Direction::kBoth);

  Backend& backend() const;
  RegistryCounts counts() const;

 private:
  void check_copied(const SlabOptions& options) const;
  std::vector<std::shared_ptr<SlabState>> slabs() const;
  std::shared_ptr<SlabState> find(const void* address) const;
  std::shared_ptr<RegistryState> state_;
};

/// Over all registries of the process: bytes that the kernel counts as pinned and that fork() does
/// not copy, and the slabs' ranges. For the fork guard.
std::size_t safely_pinned_bytes() noexcept;
bool in_some_slab(std::uintptr_t begin, std::uintptr_t end);

}  // namespace segfuse::comm
