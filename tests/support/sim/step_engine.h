#pragma once
// All streams on the host's thread, step by step as a schedule says. A piece of work takes two
// steps: it reads its memory when it begins, and what it declared as written appears when it ends,
// so that work without an order between it overlaps in every way that a device could show.
// Records and waits take no step: they are done as soon as their turn comes.

#include <mutex>
#include <vector>

#include "runtime/cpu/stream_engine.h"
#include "support/sim/schedule.h"

namespace segfuse::runtime::sim {

class StepEngine final : public StreamEngine {
 public:
  /// Says what is wrong with an access at the moment it is made; empty: nothing.
  using AccessCheck = std::function<std::string(const MemoryAccess&)>;

  StepEngine(std::shared_ptr<Schedule> schedule, AccessCheck check);

  StreamHandle create_stream() override;
  void destroy_stream(StreamHandle stream) noexcept override;
  void synchronize(StreamHandle stream) override;
  bool idle(StreamHandle stream) override;
  std::uint64_t identity(StreamHandle stream) override;
  void drain() override;
  EventHandle create_event() override;
  void destroy_event(EventHandle event) noexcept override;
  void record(StreamHandle stream, EventHandle event) override;
  void wait(StreamHandle stream, EventHandle event) override;
  bool query(EventHandle event) override;
  void synchronize_event(EventHandle event) override;
  void enqueue(StreamHandle stream, StreamWork work) override;
  void hold(StreamHandle stream, bool held) override;
  bool wants_accesses() const noexcept override { return true; }

  /// Lets the device take steps before the host sees or changes memory.
  void observe();
  /// Takes a stream's next step, if it has one: for tests that say every step themselves.
  bool step(StreamHandle stream);
  /// All choices up to now, for scripted(): streams by number, kHost.
  std::vector<int> choices() const;
  int number(StreamHandle stream) const;

 private:
  /// A range that work has written, and its content once the work ends.
  struct Write {
    std::byte* address = nullptr;
    std::vector<std::byte> content;
  };
  struct Stream {
    int number = 0;
    StreamHandle handle;
    std::deque<StreamItem> items;
    std::uint64_t enqueued = 0;
    std::uint64_t done = 0;
    bool begun = false;  ///< the first item
    bool held = false;
    bool closing = false;
    std::vector<Write> writes;  ///< of the work that has begun
    std::exception_ptr failure;
  };
  using Guard = std::lock_guard<std::recursive_mutex>;

  void push(Stream& stream, StreamItem item);
  void settle();
  bool settle_first(Stream& stream);
  void take(Stream& stream);
  void begin(Stream& stream);
  void end(Stream& stream);
  void run_work(Stream& stream);
  std::vector<Step> steps() const;
  Stream* stream_of(int number) const;
  int wanted_stream(int number) const;
  void let_device(Moment moment);
  void wait_for(int number, const std::function<bool()>& is_done);
  [[noreturn]] void report_deadlock(int number) const;

  mutable std::recursive_mutex mutex_;  ///< recursive: work that is dropped may free memory
  std::shared_ptr<Schedule> schedule_;
  AccessCheck check_;
  HandleTable<Stream, StreamHandle> streams_{"stream"};
  HandleTable<StreamEvent, EventHandle> events_{"event"};
  std::vector<std::shared_ptr<Stream>> all_;  ///< by number; those that are destroyed and empty go
  int next_number_ = 0;
  bool stepping_ = false;
  std::vector<int> choices_;
};

}  // namespace segfuse::runtime::sim
