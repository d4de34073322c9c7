#pragma once
// A device around a device that finds missing waits. It looks at what is enqueued, not at what
// happens: its own vector clocks, made of records, waits and synchronisations alone, say which uses
// of memory are ordered, and it remembers uses by address across frees and reuse. So what it finds
// does not depend on timing, but for queries: an answer of "complete" is an order, too.
//
// Streams that were made by others are known from their first use through the checker on; what they
// did before is not seen.
//
// It sees what is declared: the accesses of launches, copies, fills, and what the host is said to
// touch. A race is reported between each use and the latest earlier uses of the same bytes that it
// conflicts with; an earlier use that one of those is ordered after is left out, since the same
// wait puts it right.

#include <map>
#include <memory>
#include <unordered_map>

#include "base/mutex.h"
#include "runtime/address_set.h"
#include "runtime/check/access_history.h"
#include "runtime/check/finding.h"
#include "runtime/device.h"

namespace segfuse::runtime {

enum class CheckMode {
  kCollect,  ///< goes on; ask findings()
  kThrow,    ///< throws RaceFound instead of passing the call on (releases only collect)
};

class RaceChecker final : public Device {
 public:
  /// The device must have no streams, events or memory yet that are to be used through the checker.
  explicit RaceChecker(Device& device, CheckMode mode = CheckMode::kCollect);

  /// The first kMaxFindings of them, in the order they were found.
  std::vector<Finding> findings() const;
  /// All that were found.
  std::uint64_t count() const;
  /// For reports.
  void name_stream(StreamHandle stream, std::string name);
  /// The host is about to read or write memory that the device uses, too (pinned memory).
  void host_access(const MemoryAccess& access);
  /// Memory goes to an allocator that hands it out again only when the work that these streams have
  /// now is over: no use that comes before that can race with a later one.
  void hand_back(std::byte* address, std::size_t bytes, std::span<const StreamHandle> streams);

  std::string name() const override { return device_.name(); }
  StreamHandle create_stream() override;
  void destroy_stream(StreamHandle stream) noexcept override;
  void synchronize(StreamHandle stream) override;
  bool idle(StreamHandle stream) override;
  std::uint64_t identity(StreamHandle stream) override { return device_.identity(stream); }
  void drain() override;
  EventHandle create_event() override;
  void destroy_event(EventHandle event) noexcept override;
  void record(StreamHandle stream, EventHandle event) override;
  void wait(StreamHandle stream, EventHandle event) override;
  bool query(EventHandle event) override;
  void synchronize_event(EventHandle event) override;
  void launch(StreamHandle stream, Work work, std::span<const MemoryAccess> accesses) override;
  void copy(StreamHandle stream, void* to, const void* from, std::size_t bytes) override;
  void fill(StreamHandle stream, void* at, std::uint8_t value, std::size_t bytes) override;
  void read(StreamHandle stream, void* to, const void* from, std::size_t bytes) override;
  bool is_captured(StreamHandle stream) override { return device_.is_captured(stream); }
  std::byte* allocate_pooled(StreamHandle stream, std::size_t bytes) override {
    return device_.allocate_pooled(stream, bytes);
  }
  void release_pooled(StreamHandle stream, std::byte* memory) noexcept override {
    device_.release_pooled(stream, memory);
  }
  std::size_t granule() const override { return device_.granule(); }
  std::byte* reserve(std::size_t bytes) override;
  void unreserve(std::byte* address, std::size_t bytes) noexcept override;
  void map(std::byte* address, std::size_t bytes) override;
  void unmap(std::byte* address, std::size_t bytes) override;
  DeviceMemory memory() override { return device_.memory(); }
  std::byte* allocate_pinned(std::size_t bytes) override;
  void release_pinned(std::byte* address, std::size_t bytes) noexcept override;
  std::shared_ptr<std::byte> allocate_shared(std::size_t bytes) override {
    return device_.allocate_shared(bytes);
  }
  std::string share(const std::shared_ptr<std::byte>& memory) override {
    return device_.share(memory);
  }
  std::shared_ptr<std::byte> reach_shared(const std::string& shared) override {
    return device_.reach_shared(shared);
  }

  static constexpr std::size_t kMaxFindings = 1000;
  static constexpr std::size_t kFindingsWithHistory = 16;
  static constexpr std::size_t kHistory = 256;

 private:
  /// What stands behind a slot of the clocks. Slots are used again once the host has seen all of
  /// their work complete; their ticks go on.
  struct Stream {
    std::size_t slot = 0;
    int number = 0;
    bool foreign = false;        ///< made by others; `identity` tells it from a later one
    std::uint64_t identity = 0;  ///< of foreign streams
    std::uint64_t operations = 0;
    VectorClock clock;
  };
  /// A record of an event.
  struct Record {
    VectorClock clock;
    int stream = 0;
    std::uint64_t operation = 0;
  };
  struct PastOperation {
    Operation::Kind kind;
    int stream;
    std::uint64_t operation;
    std::uint32_t name;
    int from_stream;
    std::uint64_t from_operation;
  };
  using Enqueue = std::function<void()>;

  void submit(StreamHandle stream, std::string_view work, std::span<const MemoryAccess> accesses,
              const Enqueue& enqueue);
  std::vector<Finding> check(const PastUse& use, std::span<const MemoryAccess> accesses,
                             const VectorClock& clock) const SEGFUSE_REQUIRES(mutex_);
  void check_conflicts(std::vector<Finding>& found, Finding::Kind kind, const Finding::Use& later,
                       const MemoryAccess& access, const VectorClock& clock) const
      SEGFUSE_REQUIRES(mutex_);
  void check_release(const std::byte* address, std::size_t bytes, bool may_throw)
      SEGFUSE_REQUIRES(mutex_);
  void report(std::vector<Finding> found, bool may_throw) SEGFUSE_REQUIRES(mutex_);
  Finding::Use describe(const PastUse& use) const SEGFUSE_REQUIRES(mutex_);
  VectorClock clock_of(const Stream& stream) const SEGFUSE_REQUIRES(mutex_);
  std::size_t free_slot() SEGFUSE_REQUIRES(mutex_);
  std::uint32_t intern(std::string_view text) SEGFUSE_REQUIRES(mutex_);
  void remember(PastOperation operation) SEGFUSE_REQUIRES(mutex_);
  std::vector<Operation> history() const SEGFUSE_REQUIRES(mutex_);
  Stream* find(StreamHandle stream) SEGFUSE_REQUIRES(mutex_);
  Stream& add(StreamHandle stream) SEGFUSE_REQUIRES(mutex_);
  Stream& known(StreamHandle stream) SEGFUSE_REQUIRES(mutex_);

  Device& device_;
  const CheckMode mode_;

  mutable Mutex mutex_;  ///< guards the rest; held while a call is enqueued
  std::unordered_map<StreamHandle, Stream> streams_ SEGFUSE_GUARDED_BY(mutex_);
  std::unordered_map<EventHandle, std::shared_ptr<const Record>> events_ SEGFUSE_GUARDED_BY(mutex_);
  std::vector<std::uint64_t> ticks_ SEGFUSE_GUARDED_BY(mutex_);  ///< of each slot
  std::vector<std::size_t> left_ SEGFUSE_GUARDED_BY(mutex_);     ///< slots of destroyed streams
  int made_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::map<int, std::string> stream_names_ SEGFUSE_GUARDED_BY(mutex_);
  VectorClock host_ SEGFUSE_GUARDED_BY(mutex_);  ///< what the host has seen complete
  AccessHistory accesses_ SEGFUSE_GUARDED_BY(mutex_);
  AddressSet reserved_ SEGFUSE_GUARDED_BY(mutex_);
  AddressSet mapped_ SEGFUSE_GUARDED_BY(mutex_);
  std::unordered_map<std::string, std::uint32_t> ids_ SEGFUSE_GUARDED_BY(mutex_);
  std::vector<std::string> texts_ SEGFUSE_GUARDED_BY(mutex_) = {""};
  std::vector<PastOperation> recent_ SEGFUSE_GUARDED_BY(mutex_);  ///< a ring
  std::uint64_t remembered_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::vector<Finding> findings_ SEGFUSE_GUARDED_BY(mutex_);
  std::uint64_t count_ SEGFUSE_GUARDED_BY(mutex_) = 0;
};

}  // namespace segfuse::runtime
