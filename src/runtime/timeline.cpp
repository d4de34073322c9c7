#include "runtime/timeline.h"

#include <fmt/format.h>

#include <algorithm>
#include <deque>
#include <exception>
#include <map>
#include <utility>

#include "base/mutex.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

namespace {

using Ticks = std::array<Tick, kMaxStreams>;

/// Events remembered for each stream; older ones are forgotten even when they may not be over.
constexpr std::size_t kLogEvents = 4096;

void raise(std::atomic<Tick>& to, Tick tick) {
  Tick old = to.load(std::memory_order_relaxed);
  while (old < tick && !to.compare_exchange_weak(old, tick, std::memory_order_release)) {
  }
}

}  // namespace

struct Timeline::Event {
  EventHandle handle;
  Device* device = nullptr;
  StreamTick at;
  Ticks clock{};
};

struct Timeline::Stream {
  mutable Mutex mutex;  ///< of making and retiring it, and of the order of what is enqueued
  std::uint32_t index = 0;
  std::uint32_t generation = 0;
  Device* device = nullptr;  ///< null: there is no such stream now
  StreamHandle handle;
  std::uint64_t identity = 0;
  bool adopted = false;
  std::string name;
  Tick tail SEGFUSE_GUARDED_BY(mutex) = 0;  ///< goes on over generations
  Tick forgotten SEGFUSE_GUARDED_BY(mutex) =
      0;  ///< an event at or before this tick has left the log before it was over
  std::deque<EventPtr> log SEGFUSE_GUARDED_BY(mutex);
  std::atomic<bool> sealed{false};
  std::array<std::atomic<Tick>, kMaxStreams> clock{};
};

struct Timeline::State {
  Mutex streams_mutex;  ///< of making and retiring streams; taken before a stream's
  std::array<Stream, kMaxStreams> streams;
  std::array<std::atomic<Tick>, kMaxStreams> host{};
  std::map<const void*, std::function<void(StreamId)>> on_retire SEGFUSE_GUARDED_BY(streams_mutex);

  Mutex pool_mutex;
  std::map<Device*, std::vector<std::unique_ptr<Event>>> pool SEGFUSE_GUARDED_BY(pool_mutex);

  std::atomic<std::uint64_t> records{0};
  std::atomic<std::uint64_t> waits{0};
  std::atomic<std::uint64_t> host_waits{0};
};

Timeline::Timeline() : state_(std::make_unique<State>()) {
  for (std::uint32_t i = 0; i < kMaxStreams; ++i) state_->streams[i].index = i;
}

Timeline::~Timeline() {
  for (Stream& stream : state_->streams) {
    if (stream.device == nullptr) continue;
    try {
      retire({stream.index, stream.generation});
    } catch (const std::exception&) {
      // A failure that nobody has waited for.
    }
  }
  for (auto& [device, events] : state_->pool)
    for (auto& event : events) device->destroy_event(event->handle);
}

Timeline::Stream& Timeline::stream_at(StreamId id) const {
  if (!id.valid()) throw UsageError("stream: none was given; make one with Timeline::create");
  Stream& stream = state_->streams[id.index];
  if (stream.device == nullptr || stream.generation != id.generation)
    throw UsageError(fmt::format("stream {}: it was retired; use a stream that exists", id.index));
  return stream;
}

/// All work of the stream is over.
void Timeline::remove(Stream& stream) SEGFUSE_REQUIRES(state_->streams_mutex) {
  const StreamId id{stream.index, stream.generation};
  {
    const MutexLock lock(stream.mutex);
    raise(state_->host[stream.index], stream.tail);
    stream.log.clear();
    stream.forgotten = 0;
    stream.sealed = false;
    if (!stream.adopted) stream.device->destroy_stream(stream.handle);
    stream.device = nullptr;
    ++stream.generation;
  }
  for (const auto& [who, notify] : state_->on_retire) notify(id);
}

StreamId Timeline::add(Device& device, StreamHandle handle, bool adopted, std::string name) {
  for (Stream& stream : state_->streams) {
    if (stream.device != nullptr) continue;
    const MutexLock lock(stream.mutex);
    stream.device = &device;
    stream.handle = handle;
    stream.identity = device.identity(handle);
    stream.adopted = adopted;
    stream.name = name.empty() ? fmt::format("stream {}", stream.index) : std::move(name);
    // All that its number did before is over; nothing else is known.
    for (auto& tick : stream.clock) tick.store(0, std::memory_order_relaxed);
    stream.clock[stream.index].store(stream.tail, std::memory_order_release);
    return {stream.index, stream.generation};
  }
  throw UsageError(fmt::format(
      "stream: {} streams exist, the maximum; retire one before creating another", kMaxStreams));
}

StreamId Timeline::create(Device& device, std::string name) {
  const MutexLock lock(state_->streams_mutex);
  const StreamHandle handle = device.create_stream();
  try {
    return add(device, handle, false, std::move(name));
  } catch (...) {
    device.destroy_stream(handle);
    throw;
  }
}

StreamId Timeline::adopt(Device& device, StreamHandle handle, std::string name) {
  const MutexLock lock(state_->streams_mutex);
  const std::uint64_t identity = device.identity(handle);
  for (Stream& stream : state_->streams) {
    if (stream.device != &device || stream.handle != handle) continue;
    if (stream.identity == identity) return {stream.index, stream.generation};
    // Its owner has destroyed it, and the handle is another stream's now.
    device.drain();
    remove(stream);
    break;
  }
  return add(device, handle, true, std::move(name));
}

void Timeline::retire(StreamId id) {
  std::exception_ptr failure;
  try {
    synchronize(id);
  } catch (const std::exception&) {
    failure = std::current_exception();
  }
  const MutexLock lock(state_->streams_mutex);
  remove(stream_at(id));
  if (failure) std::rethrow_exception(failure);
}

void Timeline::seal(StreamId id) { stream_at(id).sealed = true; }

void Timeline::break_seal(StreamId id) {
  Stream& stream = stream_at(id);
  const MutexLock lock(stream.mutex);
  stream.sealed = false;
  raise(state_->host[id.index], stream.tail);
}

bool Timeline::sealed(std::uint32_t stream) const { return state_->streams[stream].sealed; }

void Timeline::on_retire(const void* who, std::function<void(StreamId)> notify) {
  const MutexLock lock(state_->streams_mutex);
  state_->on_retire[who] = std::move(notify);
}

void Timeline::forget(const void* who) {
  const MutexLock lock(state_->streams_mutex);
  state_->on_retire.erase(who);
}

Device& Timeline::device(StreamId id) const { return *stream_at(id).device; }
StreamHandle Timeline::handle(StreamId id) const { return stream_at(id).handle; }
std::string Timeline::name(StreamId id) const { return stream_at(id).name; }

StreamTick Timeline::tail(StreamId id) const {
  return {id.index, stream_at(id).clock[id.index].load(std::memory_order_acquire)};
}

std::vector<StreamId> Timeline::streams(const Device& device) const {
  const MutexLock lock(state_->streams_mutex);
  std::vector<StreamId> found;
  for (const Stream& stream : state_->streams)
    if (stream.device == &device) found.push_back({stream.index, stream.generation});
  return found;
}

StreamTick Timeline::enqueue(StreamId id, const std::function<void(StreamHandle)>& enqueue) {
  Stream& stream = stream_at(id);
  const MutexLock lock(stream.mutex);
  enqueue(stream.handle);
  stream.clock[id.index].store(++stream.tail, std::memory_order_release);
  return {id.index, stream.tail};
}

StreamTick Timeline::touch(StreamId id) {
  Stream& stream = stream_at(id);
  const MutexLock lock(stream.mutex);
  stream.clock[id.index].store(++stream.tail, std::memory_order_release);
  return {id.index, stream.tail};
}

bool Timeline::over(StreamTick use) const {
  return use.tick() <= state_->host[use.stream()].load(std::memory_order_acquire);
}

bool Timeline::over(const Frontier& uses) const {
  return std::ranges::all_of(uses.entries(), [&](StreamTick use) { return over(use); });
}

bool Timeline::covered(StreamId id, StreamTick use) const {
  const Stream& stream = state_->streams[id.index];
  return use.tick() <= stream.clock[use.stream()].load(std::memory_order_acquire) || over(use);
}

bool Timeline::covered(StreamId id, const Frontier& uses) const {
  return std::ranges::all_of(uses.entries(), [&](StreamTick use) { return covered(id, use); });
}

// The first event at or behind a use. It is the one with the least clock of all that ever were, so
// what is known to be ordered after the use is ordered after all in its clock.
Timeline::EventPtr Timeline::find_event(const Stream& stream, StreamTick use)
    SEGFUSE_REQUIRES(stream.mutex) {
  const auto at =
      std::ranges::lower_bound(stream.log, use, {}, [](const EventPtr& e) { return e->at; });
  return at == stream.log.end() ? nullptr : *at;
}

Timeline::EventPtr Timeline::new_event(Stream& stream) SEGFUSE_REQUIRES(stream.mutex) {
  std::unique_ptr<Event> event;
  {
    const MutexLock lock(state_->pool_mutex);
    auto& pool = state_->pool[stream.device];
    if (!pool.empty()) {
      event = std::move(pool.back());
      pool.pop_back();
    }
  }
  if (!event) {
    event = std::make_unique<Event>();
    event->device = stream.device;
    event->handle = stream.device->create_event();
  }
  const auto give_back = [state = state_.get()](Event* used) {
    const MutexLock lock(state->pool_mutex);
    state->pool[used->device].emplace_back(used);
  };
  EventPtr owned(event.release(), give_back);
  stream.device->record(stream.handle, owned->handle);
  state_->records.fetch_add(1, std::memory_order_relaxed);
  owned->at = {stream.index, stream.tail};
  for (std::size_t i = 0; i < kMaxStreams; ++i)
    owned->clock[i] = stream.clock[i].load(std::memory_order_acquire);

  while (!stream.log.empty() && over(stream.log.front()->at)) stream.log.pop_front();
  if (stream.log.size() >= kLogEvents) {
    stream.forgotten = stream.log.front()->at.tick();
    stream.log.pop_front();
  }
  stream.log.push_back(owned);
  return owned;
}

Timeline::EventPtr Timeline::event_behind(StreamTick use) {
  Stream& stream = state_->streams[use.stream()];
  if (stream.sealed)
    throw InternalError(fmt::format("{} is sealed: nothing can wait for it", stream.name));
  const MutexLock lock(stream.mutex);
  if (EventPtr found = find_event(stream, use)) return found;
  return new_event(stream);
}

// The entries from which the others follow. Entry b follows from entry a when the event behind a,
// or the one that would be recorded now, is itself ordered after b.
std::vector<StreamTick> Timeline::essential(std::span<const StreamTick> uses) const {
  std::vector<StreamTick> left(uses.begin(), uses.end());
  if (left.size() < 2) return left;
  const auto follows = [&](StreamTick b, StreamTick a) {
    const Stream& stream = state_->streams[a.stream()];
    const MutexLock lock(stream.mutex);
    if (a.tick() <= stream.forgotten) return false;
    if (const EventPtr event = find_event(stream, a)) return event->clock[b.stream()] >= b.tick();
    return stream.clock[b.stream()].load(std::memory_order_acquire) >= b.tick();
  };
  for (std::size_t i = 0; i < left.size();) {
    const bool redundant = std::ranges::any_of(left, [&](StreamTick other) {
      return other.stream() != left[i].stream() && follows(left[i], other);
    });
    if (redundant)
      left.erase(left.begin() + static_cast<std::ptrdiff_t>(i));
    else
      ++i;
  }
  return left;
}

std::vector<StreamTick> Timeline::missing(StreamId id, const Frontier& uses) const {
  std::vector<StreamTick> missing;
  for (const StreamTick use : uses.entries())
    if (!covered(id, use)) missing.push_back(use);
  return essential(missing);
}

int Timeline::missing_waits(StreamId id, const Frontier& uses) const {
  return static_cast<int>(missing(id, uses).size());
}

int Timeline::order_after(StreamId id, const Frontier& uses) {
  int waits = 0;
  for (const StreamTick use : missing(id, uses)) {
    wait(id, *event_behind(use));
    ++waits;
  }
  return waits;
}

void Timeline::wait(StreamId id, const Event& event) {
  Stream& stream = stream_at(id);
  if (stream.device != event.device) return host_wait(event);  // devices may not share events
  const MutexLock lock(stream.mutex);
  stream.device->wait(stream.handle, event.handle);
  state_->waits.fetch_add(1, std::memory_order_relaxed);
  for (std::size_t i = 0; i < kMaxStreams; ++i) raise(stream.clock[i], event.clock[i]);
}

void Timeline::let_wait(Device& device, StreamHandle outside, const Frontier& uses) {
  std::vector<StreamTick> pending;
  for (const StreamTick use : uses.entries())
    if (!over(use)) pending.push_back(use);
  for (const StreamTick use : essential(pending)) {
    const EventPtr event = event_behind(use);
    if (event->device != &device)
      host_wait(*event);
    else
      device.wait(outside, event->handle);
  }
}

void Timeline::order_after_outside(StreamId id, StreamHandle outside) {
  Stream& stream = stream_at(id);
  if (stream.handle == outside) return;
  const EventHandle event = stream.device->create_event();
  try {
    stream.device->record(outside, event);
    const MutexLock lock(stream.mutex);
    stream.device->wait(stream.handle, event);
  } catch (...) {
    stream.device->destroy_event(event);
    throw;
  }
  stream.device->destroy_event(event);
}

void Timeline::host_wait(const Event& event) {
  state_->host_waits.fetch_add(1, std::memory_order_relaxed);
  try {
    event.device->synchronize_event(event.handle);
  } catch (...) {
    raise_host(event.clock);
    throw;
  }
  raise_host(event.clock);
}

void Timeline::settle(Frontier& uses, std::uint32_t home) {
  uses.drop_if([&](StreamTick use) { return over(use); });
  if (uses.only(home)) return;
  const std::vector<StreamTick> left = essential(uses.entries());
  uses.clear();
  for (const StreamTick use : left) uses.raise(use);
  for (const StreamTick use : left)
    if (use.stream() != home && !sealed(use.stream())) event_behind(use);
}

void Timeline::raise_host(const Ticks& clock) {
  for (std::size_t i = 0; i < kMaxStreams; ++i)
    if (!state_->streams[i].sealed) raise(state_->host[i], clock[i]);
}

Ticks Timeline::clock_of(const Stream& stream) {
  Ticks clock;
  for (std::size_t i = 0; i < kMaxStreams; ++i)
    clock[i] = stream.clock[i].load(std::memory_order_acquire);
  return clock;
}

void Timeline::synchronize(StreamId id) {
  const Stream& stream = stream_at(id);
  const Ticks clock = clock_of(stream);
  state_->host_waits.fetch_add(1, std::memory_order_relaxed);
  // What throws has waited all the same.
  try {
    stream.device->synchronize(stream.handle);
  } catch (...) {
    raise_host(clock);
    throw;
  }
  raise_host(clock);
}

void Timeline::synchronize(const Frontier& uses) {
  std::vector<StreamTick> pending;
  for (const StreamTick use : uses.entries())
    if (!over(use)) pending.push_back(use);
  for (const StreamTick use : essential(pending)) {
    host_wait(*event_behind(use));
  }
}

void Timeline::drain(Device& device) {
  std::vector<Ticks> clocks;
  for (const StreamId id : streams(device)) clocks.push_back(clock_of(stream_at(id)));
  state_->host_waits.fetch_add(1, std::memory_order_relaxed);
  device.drain();
  for (const Ticks& clock : clocks) raise_host(clock);
}

void Timeline::poll() {
  for (Stream& stream : state_->streams) {
    EventPtr last;
    {
      const MutexLock lock(stream.mutex);
      for (const EventPtr& event : stream.log) {
        if (!stream.device->query(event->handle)) break;
        last = event;
      }
    }
    if (last) raise_host(last->clock);
  }
}

void Timeline::ask(const Device& device) {
  for (const StreamId id : streams(device)) {
    const StreamTick last = tail(id);
    if (sealed(id.index) || over(last)) continue;
    // An event that is recorded now is not over now, even if the stream has nothing to do.
    const Stream& stream = stream_at(id);
    const Ticks clock = clock_of(stream);
    if (stream.device->idle(stream.handle))
      raise_host(clock);
    else
      event_behind(last);
  }
  poll();
}

TimelineCounts Timeline::counts() const {
  return {state_->records.load(), state_->waits.load(), state_->host_waits.load()};
}

}  // namespace segfuse::runtime
