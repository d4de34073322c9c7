#pragma once
// Registered memory: memory that devices reach by themselves, in slabs of whole pages that are ours
// alone. A slab is kept from forked children as a whole, when it is made, so no page of anybody
// else is, the number of mappings does not grow with registrations, and fork() has nothing to copy.
//
//   comm::Registry registry(comm::make_uring_backend());
//   comm::SubAllocator flags(registry.make_slab({.owner = "flags", .bytes = 4096}));
//   std::byte* const flag = flags.allocate(4);
//   const comm::Registration pinned = flags.register_object(flag);  // as long as it lives
//
// A slab is pinned as a whole too: at its first registration, until the last one ends.
// Registrations are views of it, to the byte, and may overlap.
//
// In a forked child every function throws ForkedChildError, and destructors do nothing. Programs
// are started by segfuse/spawn.h, which makes no copy of this process. More: docs/fork.md.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace segfuse::comm {

struct SlabState;
struct RegistryState;

/// What a forked child gets of a slab.
enum class ForkPolicy {
  kAbsent,  ///< nothing: touching it faults (MADV_DONTFORK, once, before any pin)
  kShared,  ///< the same memory
  /// A copy, which the kernel makes at once where it is pinned, at seconds a GiB. Where something
  /// pins, only with a kernel that is seen to do so (docs/fork.md), and up to kMaxCopied.
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
inline constexpr std::size_t kMaxCopied = std::size_t{256} << 20;

/// Bytes [begin, end), and the number of registrations that cover them.
struct CountedRange {
  std::uint64_t begin = 0;
  std::uint64_t end = 0;
  std::uint32_t count = 0;
  bool operator==(const CountedRange&) const = default;
};

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
/// The kernel pins, by the same path as RDMA does. DeviceError where it has no io_uring for us.
std::shared_ptr<Backend> make_uring_backend();
/// RDMA verbs through libibverbs, which is opened at run time: the first device, or the one with
/// this name. DeviceError without the library or a device, which is ordinary. Warns when the
/// environment asks libibverbs to keep single pages from children (RDMAV_FORK_SAFE), which slabs
/// make unnecessary and which breaks other memory.
std::shared_ptr<Backend> make_verbs_backend(const std::string& device = {});

/// A registered range; keeps its slab alive. For one thread at a time.
class [[nodiscard]] Registration {
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
class [[nodiscard]] Slab {
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
  /// Is a byte of the range registered `times` times?
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

inline constexpr std::size_t kCacheLine = 64;

/// The smallest free range that fits, the lowest of equals: addresses depend on the calls alone.
/// Any thread. All of it is freed, or forgotten, when this object is destroyed.
class SubAllocator {
 public:
  /// `registered_whole`: the maker of this holds one registration of the whole slab.
  explicit SubAllocator(Slab slab, bool registered_whole = false);
  SubAllocator(const SubAllocator&) = delete;
  SubAllocator& operator=(const SubAllocator&) = delete;

  /// Whole cache lines of its own, at a multiple of `alignment` (a power of two); null when nothing
  /// fits. UsageError for 0 bytes.
  std::byte* allocate(std::size_t bytes, std::size_t alignment = kCacheLine);
  /// UsageError, and nothing changes, for an address that is not live, and for memory of which a
  /// byte is registered (once more than as a whole).
  void deallocate(std::byte* address);
  /// The requested size. UsageError unless the address is live.
  std::size_t bytes_of(const std::byte* address) const;
  bool owns(const std::byte* address) const;
  bool empty() const;
  std::size_t live_bytes() const;  ///< with rounding

  Registration register_object(std::byte* address);
  Slab& slab() { return slab_; }

 private:
  struct Block {
    std::size_t held = 0;   ///< with rounding
    std::size_t asked = 0;  ///< by the caller
  };
  using Live = std::map<std::size_t, Block>;
  Live::const_iterator find(const char* call, const std::byte* address) const;
  void add_free(std::size_t offset, std::size_t bytes);
  void remove_free(std::size_t offset);
  void resize_free(std::size_t offset, std::size_t bytes);

  Slab slab_;
  std::byte* base_;
  std::uint32_t forbidden_;  ///< registrations of what is freed
  mutable std::mutex mutex_;
  Live live_;
  std::map<std::size_t, std::size_t> free_;                ///< bytes by offset
  std::set<std::pair<std::size_t, std::size_t>> by_size_;  ///< bytes, offset
  std::size_t live_bytes_ = 0;
};

}  // namespace segfuse::comm
