#include "comm/registered/registry.h"

#include <fmt/core.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "comm/registered/child.h"
#include "comm/registered/copy_on_fork.h"
#include "comm/registered/foreign.h"
#include "comm/registered/mapping.h"
#include "comm/registered/range_map.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

std::uintptr_t number(const void* address) { return reinterpret_cast<std::uintptr_t>(address); }

/// Ranges of all slabs of the process, by begin. Never destroyed: slabs may outlive statics.
struct AllSlabs {
  Mutex mutex;
  std::map<std::uintptr_t, std::uintptr_t> ranges SEGFUSE_GUARDED_BY(mutex);
  std::atomic<std::size_t> safely_pinned{0};
};
AllSlabs& all_slabs() {
  static AllSlabs& all = *new AllSlabs;
  return all;
}

class NoPin final : public Pin {};
class NoBackend final : public Backend {
 public:
  std::string_view name() const override { return "none"; }
  std::unique_ptr<Pin> pin(std::span<std::byte>) override { return std::make_unique<NoPin>(); }
  bool pins() const override { return false; }
};

}  // namespace

std::shared_ptr<Backend> make_no_backend() { return std::make_shared<NoBackend>(); }

struct RegistryState {
  std::shared_ptr<Backend> backend;
  mutable Mutex mutex;
  std::map<std::uintptr_t, std::weak_ptr<SlabState>> slabs
      SEGFUSE_GUARDED_BY(mutex);  ///< by the end of the payload
};

struct SlabState {
  SlabState(std::shared_ptr<RegistryState> of, const SlabOptions& options)
      : registry(std::move(of)), mapping(options), owner(options.owner), policy(options.fork) {
    const MutexLock lock(all_slabs().mutex);
    all_slabs().ranges.emplace(begin(), end());
  }
  ~SlabState() {
    if (in_forked_child()) return;
    {
      const MutexLock lock(registry->mutex);
      registry->slabs.erase(end());
    }
    const MutexLock lock(all_slabs().mutex);
    all_slabs().ranges.erase(begin());
  }
  SlabState(const SlabState&) = delete;
  SlabState& operator=(const SlabState&) = delete;

  std::uintptr_t begin() const { return number(mapping.payload().data()); }
  std::uintptr_t end() const { return begin() + mapping.payload().size(); }
  std::size_t safe_bytes() const {
    const bool safe = policy != ForkPolicy::kCopied && registry->backend->counted();
    return safe ? mapping.payload().size() : 0;
  }

  std::shared_ptr<RegistryState> registry;
  Mapping mapping;
  std::string owner;
  ForkPolicy policy;
  mutable Mutex mutex;
  RangeMap ranges SEGFUSE_GUARDED_BY(mutex);
  std::unique_ptr<Pin> pin SEGFUSE_GUARDED_BY(mutex);  ///< there while `ranges` is not empty
};

// --- registrations -----------------------------------------------------------------------------

Registration Registration::make(const std::shared_ptr<SlabState>& slab, std::size_t offset,
                                std::size_t bytes) {
  refuse_in_child("register_range");
  const std::size_t size = slab->mapping.payload().size();
  if (bytes == 0)
    throw UsageError(fmt::format("slab '{}': 0 bytes at offset {} to register; expected at least 1",
                                 slab->owner, offset));
  if (offset > size || bytes > size - offset)
    throw UsageError(fmt::format("slab '{}': {} bytes at offset {} to register; the slab has {}",
                                 slab->owner, bytes, offset, size));
  const MutexLock lock(slab->mutex);
  slab->ranges.add(offset, offset + bytes);
  try {
    if (!slab->pin) {
      slab->pin = slab->registry->backend->pin(slab->mapping.payload());
      all_slabs().safely_pinned += slab->safe_bytes();
    }
  } catch (...) {
    slab->ranges.remove(offset, offset + bytes);
    throw;
  }
  return {slab, offset, bytes};
}

void Registration::drop() noexcept {
  const std::shared_ptr<SlabState> slab = std::exchange(slab_, nullptr);
  if (slab == nullptr || in_forked_child()) return;
  const MutexLock lock(slab->mutex);
  slab->ranges.remove(offset_, offset_ + bytes_);
  if (!slab->ranges.empty()) return;
  slab->pin.reset();
  all_slabs().safely_pinned -= slab->safe_bytes();
}

Registration& Registration::operator=(Registration&& other) noexcept {
  if (this == &other) return *this;
  drop();
  slab_ = std::exchange(other.slab_, nullptr);
  offset_ = other.offset_;
  bytes_ = other.bytes_;
  return *this;
}

Registration::~Registration() { drop(); }

namespace {

/// The state behind a handle that has one.
SlabState& alive(const std::shared_ptr<SlabState>& state, const char* what) {
  refuse_in_child(what);
  if (state == nullptr)
    throw UsageError(fmt::format("{}: this handle is empty; it was moved from, or released", what));
  return *state;
}

}  // namespace

void Registration::release() {
  alive(slab_, "Registration::release");
  drop();
}

std::byte* Registration::address() const {
  return alive(slab_, "Registration::address").mapping.payload().data() + offset_;
}

/// Without the lock: a registration keeps the pin.
const Pin& Registration::pin() const SEGFUSE_LOCKS_UNCHECKED {
  return *alive(slab_, "Registration::pin").pin;
}

std::span<std::byte> Registration::slab() const {
  return alive(slab_, "Registration::slab").mapping.payload();
}

// --- slabs -------------------------------------------------------------------------------------

std::byte* Slab::data() const { return alive(state_, "Slab::data").mapping.payload().data(); }
std::size_t Slab::bytes() const { return alive(state_, "Slab::bytes").mapping.payload().size(); }
const std::string& Slab::owner() const { return alive(state_, "Slab::owner").owner; }
Backing Slab::backing() const { return alive(state_, "Slab::backing").mapping.backing(); }

Registration Slab::register_range(std::size_t offset, std::size_t bytes) {
  alive(state_, "Slab::register_range");
  return Registration::make(state_, offset, bytes);
}

bool Slab::registered(std::size_t offset, std::size_t bytes, std::uint32_t times) const {
  const SlabState& state = alive(state_, "Slab::registered");
  const MutexLock lock(state.mutex);
  return state.ranges.touches(offset, offset + bytes, times);
}

std::vector<CountedRange> Slab::registrations() const {
  const SlabState& state = alive(state_, "Slab::registrations");
  const MutexLock lock(state.mutex);
  return state.ranges.ranges();
}

bool Slab::pinned() const {
  const SlabState& state = alive(state_, "Slab::pinned");
  const MutexLock lock(state.mutex);
  return state.pin != nullptr;
}

// --- bounced memory ----------------------------------------------------------------------------

void Bounce::to_device() {
  if (direction_ == Direction::kDeviceWrites)
    throw UsageError("bounced memory: made for a device that writes; nothing goes to it");
  std::memcpy(registration_.address(), foreign_.data(), foreign_.size());
}

void Bounce::from_device() {
  if (direction_ == Direction::kDeviceReads)
    throw UsageError("bounced memory: made for a device that reads; nothing comes from it");
  std::memcpy(foreign_.data(), registration_.address(), foreign_.size());
}

// --- registries --------------------------------------------------------------------------------

Registry::Registry(std::shared_ptr<Backend> backend) : state_(std::make_shared<RegistryState>()) {
  refuse_in_child("Registry");
  if (backend == nullptr) throw UsageError("Registry: no back end; make_no_backend() pins nothing");
  state_->backend = std::move(backend);
}

void Registry::check_copied(const SlabOptions& options) const {
  if (options.fork != ForkPolicy::kCopied || !state_->backend->pins()) return;
  const CopyOnForkProof& proof = copy_on_fork();
  if (proof.answer != CopyOnFork::kYes)
    throw DeviceError(fmt::format(
        "slab '{}': children may have a copy only where the kernel is seen to copy pinned memory "
        "in fork(), and here it is not: {}; share it with children, or keep it from them",
        options.owner, proof.reason));
  std::size_t copied = 0;
  for (const auto& slab : slabs())
    if (slab->policy == ForkPolicy::kCopied) copied += slab->mapping.payload().size();
  if (options.bytes > kMaxCopied - std::min(kMaxCopied, copied))
    throw UsageError(fmt::format(
        "slab '{}': {} bytes that every fork() copies, beside {} there are; expected at most {} in "
        "all",
        options.owner, options.bytes, copied, kMaxCopied));
}

Slab Registry::make_slab(const SlabOptions& options) {
  refuse_in_child("Registry::make_slab");
  check_copied(options);
  auto slab = std::make_shared<SlabState>(state_, options);
  const MutexLock lock(state_->mutex);
  state_->slabs.emplace(slab->end(), slab);
  return Slab(std::move(slab));
}

std::vector<std::shared_ptr<SlabState>> Registry::slabs() const {
  std::vector<std::shared_ptr<SlabState>> found;
  const MutexLock lock(state_->mutex);
  found.reserve(state_->slabs.size());
  for (const auto& [end, slab] : state_->slabs)
    if (auto alive_slab = slab.lock()) found.push_back(std::move(alive_slab));
  return found;
}

std::shared_ptr<SlabState> Registry::find(const void* address) const {
  std::shared_ptr<SlabState> slab;  // may be the last handle, and then locks to go
  const MutexLock lock(state_->mutex);
  const auto next = state_->slabs.upper_bound(number(address));
  if (next == state_->slabs.end()) return nullptr;
  slab = next->second.lock();
  return slab && slab->begin() <= number(address) ? slab : nullptr;
}

Registration Registry::register_address(void* address, std::size_t bytes) {
  refuse_in_child("Registry::register_address");
  if (const std::shared_ptr<SlabState> slab = find(address))
    return Registration::make(slab, number(address) - slab->begin(), bytes);
  refuse_foreign(address, bytes);
}

Bounce Registry::bounce(void* address, std::size_t bytes, Direction direction) {
  refuse_in_child("Registry::bounce");
  const bool reads = direction != Direction::kDeviceWrites;
  const bool writes = direction != Direction::kDeviceReads;
  check_usable(address, bytes, reads, writes);
  Slab slab = make_slab({.owner = "bounce", .bytes = bytes});
  return Bounce({static_cast<std::byte*>(address), bytes}, direction,
                slab.register_range(0, bytes));
}

Backend& Registry::backend() const { return *state_->backend; }

RegistryCounts Registry::counts() const {
  refuse_in_child("Registry::counts");
  RegistryCounts out;
  for (const auto& slab : slabs()) {
    const MutexLock lock(slab->mutex);
    const std::size_t bytes = slab->mapping.payload().size();
    ++out.slabs;
    out.bytes += bytes;
    out.pinned_bytes += slab->pin ? bytes : 0;
  }
  return out;
}

std::size_t safely_pinned_bytes() noexcept { return all_slabs().safely_pinned; }

bool in_some_slab(std::uintptr_t begin, std::uintptr_t end) {
  AllSlabs& all = all_slabs();
  const MutexLock lock(all.mutex);
  const auto next = all.ranges.upper_bound(begin);
  return next != all.ranges.begin() && std::prev(next)->second >= end;
}

}  // namespace segfuse::comm
