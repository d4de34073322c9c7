#include "support/sim/sim_device.h"

#include <fmt/core.h>
#include <unistd.h>

#include <cstring>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/mutex.h"
#include "runtime/cpu/stream_threads.h"

namespace segfuse::runtime::sim {
namespace {

constexpr std::array<std::string_view, kCalls> kCallNames = {
    "create_stream", "destroy_stream", "synchronize",     "create_event",      "destroy_event",
    "record",        "wait",           "query",           "synchronize_event", "launch",
    "copy",          "fill",           "reserve",         "unreserve",         "map",
    "unmap",         "memory",         "allocate_pinned", "release_pinned"};

std::size_t page_size() { return static_cast<std::size_t>(sysconf(_SC_PAGESIZE)); }
std::size_t whole_pages(std::size_t bytes) {
  return (bytes + page_size() - 1) / page_size() * page_size();
}

}  // namespace

std::string_view call_name(Call call) { return kCallNames[static_cast<std::size_t>(call)]; }

SimDevice::SimDevice(SimOptions options)
    : memory_({options.granule, options.limit, options.address_space, options.junk}),
      pinned_({page_size(), options.pinned_limit, options.address_space, options.junk}) {
  if (options.schedule == nullptr) {
    engine_ = std::make_unique<StreamThreads>();
    return;
  }
  auto engine = std::make_unique<StepEngine>(
      std::move(options.schedule),
      [this](const MemoryAccess& access) { return complaint(access); });
  steps_ = engine.get();
  engine_ = std::move(engine);
}

SimDevice::SimDevice(std::shared_ptr<Schedule> schedule)
    : SimDevice([&] {
        SimOptions options;
        options.schedule = std::move(schedule);
        return options;
      }()) {}

StepEngine& SimDevice::steps() const {
  SEGFUSE_CHECK(steps_ != nullptr, "this simulated device has threads and no schedule");
  return *steps_;
}

void SimDevice::observe() {
  if (steps_ != nullptr) steps_->observe();
}

void SimDevice::count(Call call) noexcept {
  const MutexLock lock(mutex_);
  ++counts_[static_cast<std::size_t>(call)];
}

void SimDevice::count_fallible(Call call) {
  const MutexLock lock(mutex_);
  ++counts_[static_cast<std::size_t>(call)];
  ++fallible_;
  if (fail_in_ == 0 || (fail_kind_ && *fail_kind_ != call) || --fail_in_ != 0) return;
  throw DeviceError(fmt::format("sim: {} fails, as the test wants it to", call_name(call)));
}

std::uint64_t SimDevice::calls(Call call) const {
  const MutexLock lock(mutex_);
  return counts_[static_cast<std::size_t>(call)];
}

std::uint64_t SimDevice::calls() const {
  const MutexLock lock(mutex_);
  return std::accumulate(counts_.begin(), counts_.end(), std::uint64_t{0});
}

std::uint64_t SimDevice::fallible_calls() const {
  const MutexLock lock(mutex_);
  return fallible_;
}

void SimDevice::fail_at(std::uint64_t k, std::optional<Call> kind) {
  const MutexLock lock(mutex_);
  fail_in_ = k;
  fail_kind_ = kind;
}

void SimDevice::fail_work_at(std::uint64_t k) {
  const MutexLock lock(mutex_);
  fail_work_in_ = k;
}

StreamHandle SimDevice::create_stream() {
  count_fallible(Call::kCreateStream);
  return engine_->create_stream();
}

void SimDevice::destroy_stream(StreamHandle stream) noexcept {
  count(Call::kDestroyStream);
  engine_->destroy_stream(stream);
}

void SimDevice::synchronize(StreamHandle stream) {
  std::exception_ptr injected;
  try {
    count_fallible(Call::kSynchronize);
  } catch (const DeviceError&) {
    injected = std::current_exception();
  }
  engine_->synchronize(stream);
  if (injected != nullptr) std::rethrow_exception(injected);
}

EventHandle SimDevice::create_event() {
  count_fallible(Call::kCreateEvent);
  return engine_->create_event();
}

void SimDevice::destroy_event(EventHandle event) noexcept {
  count(Call::kDestroyEvent);
  engine_->destroy_event(event);
}

void SimDevice::record(StreamHandle stream, EventHandle event) {
  count_fallible(Call::kRecord);
  engine_->record(stream, event);
}

void SimDevice::wait(StreamHandle stream, EventHandle event) {
  count_fallible(Call::kWait);
  engine_->wait(stream, event);
}

bool SimDevice::idle(StreamHandle stream) {
  count_fallible(Call::kQuery);
  return engine_->idle(stream);
}

bool SimDevice::query(EventHandle event) {
  count_fallible(Call::kQuery);
  return engine_->query(event);
}

void SimDevice::synchronize_event(EventHandle event) {
  std::exception_ptr injected;
  try {
    count_fallible(Call::kSynchronizeEvent);
  } catch (const DeviceError&) {
    injected = std::current_exception();
  }
  engine_->synchronize_event(event);
  if (injected != nullptr) std::rethrow_exception(injected);
}

void SimDevice::enqueue(StreamHandle stream, StreamWork work) {
  {
    const MutexLock lock(mutex_);
    if (fail_work_in_ != 0 && --fail_work_in_ == 0)
      work.run = [name = work.name](StreamHandle) {
        throw DeviceError(fmt::format("sim: '{}' fails, as the test wants it to", name));
      };
  }
  if (!engine_->wants_accesses()) work.accesses.clear();
  engine_->enqueue(stream, std::move(work));
}

void SimDevice::launch(StreamHandle stream, Work work, std::span<const MemoryAccess> accesses) {
  count_fallible(Call::kLaunch);
  StreamWork launched{
      std::move(work.name), std::move(work.run), {accesses.begin(), accesses.end()}};
  for (MemoryAccess& access : launched.accesses) access.buffer = {};
  enqueue(stream, std::move(launched));
}

void SimDevice::copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) {
  count_fallible(Call::kCopy);
  check_copied("copy", to, bytes);
  check_copied("copy", from, bytes);
  auto* const source = static_cast<std::byte*>(const_cast<void*>(from));
  enqueue(stream, {"copy",
                   [=](StreamHandle) { std::memcpy(to, from, bytes); },
                   {{static_cast<std::byte*>(to), bytes, true, {}}, {source, bytes, false, {}}}});
}

void SimDevice::fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) {
  count_fallible(Call::kFill);
  check_copied("fill", at, bytes);
  enqueue(stream, {"fill",
                   [=](StreamHandle) { std::memset(at, value, bytes); },
                   {{static_cast<std::byte*>(at), bytes, true, {}}}});
}

std::string SimDevice::complaint(const MemoryAccess& access) const {
  if (memory_.is_mapped(access.address, access.bytes)) return {};
  if (pinned_.is_mapped(access.address, access.bytes)) return {};
  if (memory_.owns(access.address, access.bytes) || pinned_.owns(access.address, access.bytes))
    return fmt::format("{} {} bytes at {}, of which some have no memory",
                       access.write ? "writes" : "reads", access.bytes,
                       static_cast<const void*>(access.address));
  return {};
}

/// What a real device copies without the host's help.
void SimDevice::check_copied(const char* call, const void* address, std::size_t bytes) const {
  if (memory_.is_mapped(address, bytes) || pinned_.is_mapped(address, bytes)) return;
  throw DeviceError(
      fmt::format("sim: {}: {} bytes at {} are neither device memory nor pinned host memory", call,
                  bytes, address));
}

std::byte* SimDevice::reserve(std::size_t bytes) {
  count_fallible(Call::kReserve);
  return memory_.reserve(bytes);
}

void SimDevice::unreserve(std::byte* address, std::size_t bytes) noexcept {
  count(Call::kUnreserve);
  memory_.unreserve(address, bytes);
}

void SimDevice::map(std::byte* address, std::size_t bytes) {
  count_fallible(Call::kMap);
  memory_.map(address, bytes);
}

void SimDevice::unmap(std::byte* address, std::size_t bytes) {
  count_fallible(Call::kUnmap);
  observe();
  memory_.unmap(address, bytes);
}

DeviceMemory SimDevice::memory() {
  count_fallible(Call::kMemory);
  return memory_.memory();
}

std::byte* SimDevice::allocate_pinned(std::size_t bytes) {
  count_fallible(Call::kAllocatePinned);
  if (bytes == 0 || bytes > pinned_.memory().free) throw NoMemory();
  const std::size_t whole = whole_pages(bytes);
  std::byte* const address = pinned_.reserve(whole);
  try {
    pinned_.map(address, whole);
  } catch (const NoMemory&) {
    pinned_.unreserve(address, whole);
    throw;
  }
  return address;
}

void SimDevice::release_pinned(std::byte* address, std::size_t bytes) noexcept {
  count(Call::kReleasePinned);
  observe();
  pinned_.unreserve(address, whole_pages(bytes));
}

bool SimDevice::is_mapped(const void* address, std::size_t bytes) const {
  return memory_.is_mapped(address, bytes);
}

}  // namespace segfuse::runtime::sim
