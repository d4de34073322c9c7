#pragma once
// A device made of host memory, for tests: it runs what it is given in the order that a schedule
// chooses, has as much memory as it is told, fails when it is told to, and counts its calls.

#include <array>
#include <cstdint>
#include <limits>
#include <memory>
#include <optional>
#include <set>
#include <string_view>
#include <vector>

#include "base/mutex.h"
#include "runtime/cpu/host_memory.h"
#include "runtime/device.h"
#include "support/sim/schedule.h"
#include "support/sim/step_engine.h"

namespace segfuse::runtime::sim {

enum class Call : int {
  kCreateStream,
  kDestroyStream,
  kSynchronize,
  kCreateEvent,
  kDestroyEvent,
  kRecord,
  kWait,
  kQuery,
  kSynchronizeEvent,
  kLaunch,
  kCopy,
  kFill,
  kReserve,
  kUnreserve,
  kMap,
  kUnmap,
  kMemory,
  kAllocatePinned,
  kReleasePinned
};
inline constexpr std::size_t kCalls = 19;
std::string_view call_name(Call call);

struct SimOptions {
  /// Null: one thread per stream runs the work, in place, as fast as it can.
  std::shared_ptr<Schedule> schedule;
  std::size_t granule = std::size_t{64} << 10;
  std::size_t limit = std::size_t{256} << 20;         ///< bytes of device memory
  std::size_t pinned_limit = std::size_t{256} << 20;  ///< in whole pages
  std::size_t address_space = std::size_t{64} << 30;
  bool junk = true;  ///< fresh memory holds junk
};

class SimDevice final : public Device {
 public:
  explicit SimDevice(SimOptions options);
  /// With a schedule, and all else by default.
  explicit SimDevice(std::shared_ptr<Schedule> schedule);

  std::string name() const override { return "sim"; }
  StreamHandle create_stream() override;
  void destroy_stream(StreamHandle stream) noexcept override;
  void synchronize(StreamHandle stream) override;
  bool idle(StreamHandle stream) override;
  bool is_captured(StreamHandle stream) override { return captured.contains(stream); }
  // Neither counted nor made to fail.
  std::uint64_t identity(StreamHandle stream) override { return engine_->identity(stream); }
  void drain() override { engine_->drain(); }
  EventHandle create_event() override;
  void destroy_event(EventHandle event) noexcept override;
  void record(StreamHandle stream, EventHandle event) override;
  void wait(StreamHandle stream, EventHandle event) override;
  bool query(EventHandle event) override;
  void synchronize_event(EventHandle event) override;
  void launch(StreamHandle stream, Work work, std::span<const MemoryAccess> accesses) override;
  void copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) override;
  void fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) override;
  std::size_t granule() const override { return memory_.granule(); }
  std::byte* reserve(std::size_t bytes) override;
  void unreserve(std::byte* address, std::size_t bytes) noexcept override;
  void map(std::byte* address, std::size_t bytes) override;
  void unmap(std::byte* address, std::size_t bytes) override;
  DeviceMemory memory() override;
  std::byte* allocate_pinned(std::size_t bytes) override;
  void release_pinned(std::byte* address, std::size_t bytes) noexcept override;

  // What follows is for tests; none of it counts as a call.

  std::uint64_t calls(Call call) const;
  /// Of all kinds.
  std::uint64_t calls() const;
  /// Calls that could have failed: fail_at() counts these. What returns noexcept cannot.
  std::uint64_t fallible_calls() const;
  /// The k-th call from now that can fail (1: the next one; of this kind, if one is named) throws
  /// DeviceError and does nothing else; a synchronisation waits first. 0: none.
  void fail_at(std::uint64_t k, std::optional<Call> kind = std::nullopt);
  /// The k-th launch, copy or fill from now fails when its stream comes to it.
  void fail_work_at(std::uint64_t k);
  void set_limit(std::size_t bytes) { memory_.set_limit(bytes); }

  /// Where all reservations lie, for comparing addresses of two devices.
  std::byte* base() const noexcept { return memory_.base(); }
  std::size_t mapped() const { return memory_.mapped(); }
  bool is_mapped(const void* address, std::size_t bytes) const;
  /// Streams of which the device says that they are captured; what they do is as ever.
  std::set<StreamHandle> captured;
  std::size_t pinned() const { return pinned_.mapped(); }

  /// A held stream takes up nothing. Waiting for it is a deadlock with a schedule, and is reported;
  /// with threads it takes another thread to end it.
  void hold(StreamHandle stream) { engine_->hold(stream, true); }
  void release(StreamHandle stream) { engine_->hold(stream, false); }
  /// With a schedule only: takes the stream's next step, if it has one. Work takes two.
  bool step(StreamHandle stream) { return steps().step(stream); }
  /// With a schedule only: what was chosen up to now, to be repeated by scripted().
  std::vector<int> choices() const { return steps().choices(); }
  /// With a schedule only: the stream's number in schedules.
  int number(StreamHandle stream) const { return steps().number(stream); }

 private:
  void count(Call call) noexcept;
  void count_fallible(Call call);
  void enqueue(StreamHandle stream, StreamWork work);
  std::string complaint(const MemoryAccess& access) const;
  void check_copied(const char* call, const void* address, std::size_t bytes) const;
  void observe();
  StepEngine& steps() const;

  HostMemory memory_;
  HostMemory pinned_;  ///< one reservation for each allocation

  mutable Mutex mutex_;  ///< guards what follows
  std::array<std::uint64_t, kCalls> counts_ SEGFUSE_GUARDED_BY(mutex_){};
  std::uint64_t fallible_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::uint64_t fail_in_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::optional<Call> fail_kind_ SEGFUSE_GUARDED_BY(mutex_);
  std::uint64_t fail_work_in_ SEGFUSE_GUARDED_BY(mutex_) = 0;

  StepEngine* steps_ = nullptr;
  std::unique_ptr<StreamEngine> engine_;  ///< last: its work uses the memory
};

}  // namespace segfuse::runtime::sim
