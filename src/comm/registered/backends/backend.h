#pragma once
// Who pins memory and makes it known to a device: one interface, and the one that does neither.

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string_view>

namespace segfuse::comm {

/// Memory that is pinned as long as this object lives. In a forked child the destructor does
/// nothing: what it would release belongs to the parent.
class Pin {
 public:
  Pin() = default;
  virtual ~Pin() = default;
  Pin(const Pin&) = delete;
  Pin& operator=(const Pin&) = delete;
  /// What peers name the memory by, where there is such a thing (an rkey).
  virtual std::uint64_t key() const { return 0; }
  /// What local operations name it by (an lkey, a descriptor of libfabric).
  virtual void* descriptor() const { return nullptr; }
};

/// Any thread. Outlives its pins.
class Backend {
 public:
  Backend() = default;
  virtual ~Backend() = default;
  Backend(const Backend&) = delete;
  Backend& operator=(const Backend&) = delete;
  virtual std::string_view name() const = 0;
  /// Whole pages. Throws DeviceError; nothing is pinned then.
  virtual std::unique_ptr<Pin> pin(std::span<std::byte> pages) = 0;
  /// Does the kernel count its pins in VmPin of /proc/PID/status?
  virtual bool counted() const { return false; }
  /// May a device reach the memory at its physical address?
  virtual bool pins() const { return true; }
};

/// Pins nothing: for transports that copy, and for tests of the bookkeeping.
std::shared_ptr<Backend> make_no_backend();

}  // namespace segfuse::comm
