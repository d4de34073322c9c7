#pragma once
// What is ordered after what, over all streams of a process: a vector clock for each stream.
//
//   C[s]  what the next work on stream s is ordered after: for each stream r, the tick up to which
//         r's work is over when it starts. C[s][s] is the last tick of s.
//   H     what the host has seen to be over.
//
// An event is (stream, tick, C[stream] when it was recorded). Waiting for it raises C by the
// event's clock, so implied order is known without asking the device. Entries only grow. A thread
// that reads a clock while another raises it sees a former value, which claims less: safe.
//
// Threads: all functions may be called from any thread. Work on one stream is enqueued under that
// stream's lock, which is also held while it ticks.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "runtime/frontier.h"
#include "runtime/tick.h"

namespace segfuse::runtime {

struct TimelineCounts {
  std::uint64_t records = 0;  ///< events recorded
  std::uint64_t waits = 0;    ///< of a stream for an event
  std::uint64_t host_waits = 0;
};

class Timeline {
 public:
  Timeline();
  /// Waits for all streams; failures of work are lost then.
  ~Timeline();
  Timeline(const Timeline&) = delete;
  Timeline& operator=(const Timeline&) = delete;

  /// A new stream of the device. `name` is for reports: "copy", "side 1"; empty: its number.
  StreamId create(Device& device, std::string name = {});
  /// A stream that somebody else made and keeps alive until retire(). Work that others enqueue on
  /// it is not seen: it is ordered by the stream, and covered by uses recorded at its tail. The
  /// same handle again gives the same id.
  StreamId adopt(Device& device, StreamHandle handle, std::string name = {});
  /// Waits for the stream and forgets it; destroys it unless it was adopted. Its number is used
  /// again. Throws the stream's failure, after the stream is destroyed.
  void retire(StreamId stream);
  /// From now on nothing waits for what is on the stream, and the stream waits for nothing: its
  /// work may run again at any time, as a captured graph does. Its ticks are over when the seal is
  /// broken, by who knows that the work runs no more. Throws UsageError unless the stream exists.
  void seal(StreamId stream);
  void break_seal(StreamId stream);
  bool sealed(std::uint32_t stream) const;
  /// Called with each stream that retires, when its work is over.
  void on_retire(const void* who, std::function<void(StreamId)> notify);
  void forget(const void* who);

  /// UsageError unless the stream exists.
  Device& device(StreamId stream) const;
  StreamHandle handle(StreamId stream) const;
  std::string name(StreamId stream) const;
  /// The last tick; 0 before any work.
  StreamTick tail(StreamId stream) const;
  /// The streams of a device that exist, by number.
  std::vector<StreamId> streams(const Device& device) const;

  /// Calls enqueue(handle) under the stream's lock and gives what it enqueued a tick. When it
  /// throws, there is no tick.
  StreamTick enqueue(StreamId stream, const std::function<void(StreamHandle)>& enqueue);
  /// Counts work that others have enqueued on the stream: a tick at its tail.
  StreamTick touch(StreamId stream);

  /// What the next work on the stream is ordered after, or the host has seen to be over.
  bool covered(StreamId stream, StreamTick use) const;
  bool covered(StreamId stream, const Frontier& uses) const;
  /// The host has seen it to be over.
  bool over(StreamTick use) const;
  bool over(const Frontier& uses) const;

  /// How many waits order_after would add.
  int missing_waits(StreamId stream, const Frontier& uses) const;
  /// Orders the next work on `stream` after `uses`, by as few waits as are missing; returns how
  /// many. When a device call throws, the waits before it stand: they order more, never less.
  int order_after(StreamId stream, const Frontier& uses);
  /// The same for streams of a device that others made and that are not to be known (adopt() keeps
  /// one until it is retired): the next work on `outside` comes after `uses`, or the next work on
  /// `stream` after all that is enqueued on `outside` now.
  void let_wait(Device& device, StreamHandle outside, const Frontier& uses);
  void order_after_outside(StreamId stream, StreamHandle outside);
  /// Ensures that an event follows every use by streams other than `home`, so that waiting for a
  /// use later does not wait for what is enqueued from now on. Removes the entries that the host
  /// has seen to be over, and those that follow from another entry's event.
  void settle(Frontier& uses, std::uint32_t home);

  /// The host waits for all work of the stream, or for these uses. Throws the first failure.
  void synchronize(StreamId stream);
  void synchronize(const Frontier& uses);
  /// The host waits for all work of a device.
  void drain(Device& device);
  /// Asks the device what is over, without waiting. Results then depend on timing.
  void poll();
  /// The same, of all that is enqueued on a device's streams now: records events where none are.
  void ask(const Device& device);

  TimelineCounts counts() const;

 private:
  struct Event;
  struct Stream;
  using EventPtr = std::shared_ptr<Event>;

  Stream& stream_at(StreamId stream) const;
  StreamId add(Device& device, StreamHandle handle, bool adopted, std::string name);
  void remove(Stream& stream);
  EventPtr event_behind(StreamTick use);
  static EventPtr find_event(const Stream& stream, StreamTick use);
  EventPtr new_event(Stream& stream);
  void wait(StreamId stream, const Event& event);
  void host_wait(const Event& event);
  static std::array<Tick, kMaxStreams> clock_of(const Stream& stream);
  void raise_host(const std::array<Tick, kMaxStreams>& clock);
  std::vector<StreamTick> essential(std::span<const StreamTick> uses) const;
  std::vector<StreamTick> missing(StreamId stream, const Frontier& uses) const;

  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace segfuse::runtime
