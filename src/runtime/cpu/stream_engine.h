#pragma once
// Streams and events in host memory, for cpu and sim: what is in a stream, and who runs it.
// StreamThreads runs each stream on a thread of its own, StepEngine (sim) runs all of them step by
// step on the host's thread.

#include <fmt/core.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <exception>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

/// Handles for objects. As with CUDA, the handle of what was removed is the next to be given out.
template <class T, class H>
class HandleTable {
 public:
  explicit HandleTable(const char* kind) : kind_(kind) {}

  H add(std::shared_ptr<T> object) {
    if (free_.empty()) {
      objects_.emplace_back();
      free_.push_back(objects_.size());
    }
    const std::size_t slot = free_.back();
    free_.pop_back();
    objects_[slot - 1] = std::move(object);
    return H(reinterpret_cast<void*>(slot * kStep));
  }
  /// Throws DeviceError when there is no such object.
  const std::shared_ptr<T>& find(H handle) const {
    if (!handle)
      throw DeviceError(
          fmt::format("there is no {} null (the legacy default stream is refused)", kind_));
    if (!contains(handle))
      throw DeviceError(fmt::format("there is no {} {}; was it destroyed?", kind_, handle.get()));
    return objects_[slot_of(handle) - 1];
  }
  /// Null when there is no such object.
  std::shared_ptr<T> remove(H handle) noexcept {
    if (!contains(handle)) return nullptr;
    free_.push_back(slot_of(handle));
    return std::move(objects_[slot_of(handle) - 1]);
  }

 private:
  static constexpr std::size_t kStep = 64;
  static std::size_t slot_of(H handle) {
    return reinterpret_cast<std::uintptr_t>(handle.get()) / kStep;
  }
  bool contains(H handle) const {
    const std::size_t slot = slot_of(handle);
    return slot >= 1 && slot <= objects_.size() && objects_[slot - 1] != nullptr &&
           reinterpret_cast<std::uintptr_t>(handle.get()) % kStep == 0;
  }

  const char* kind_;
  std::vector<std::shared_ptr<T>> objects_;
  std::vector<std::size_t> free_;
};

/// A launch, a copy or a fill.
struct StreamWork {
  std::string name;
  std::function<void(StreamHandle)> run;
  std::vector<MemoryAccess> accesses;  ///< only where the engine asks for them; no buffer names
};

/// One record of an event. Guarded by the engine's mutex.
struct Recording {
  int stream = 0;  ///< its number
  bool done = false;
  bool waited_for = false;  ///< somebody is to be woken when it is done
  std::exception_ptr failure;
};

/// An entry of a stream: one of the three.
struct StreamItem {
  StreamWork work;
  std::shared_ptr<Recording> record;
  std::shared_ptr<Recording> wait;
};

struct StreamEvent {
  std::shared_ptr<Recording> last;  ///< null: never recorded
};

/// The part of Device that has to do with streams and events, with the same contracts. The
/// destructor drops what has not begun.
class StreamEngine {
 public:
  virtual ~StreamEngine() = default;
  virtual StreamHandle create_stream() = 0;
  virtual void destroy_stream(StreamHandle stream) noexcept = 0;
  virtual void synchronize(StreamHandle stream) = 0;
  virtual bool idle(StreamHandle stream) = 0;
  virtual std::uint64_t identity(StreamHandle stream) = 0;
  virtual void drain() = 0;
  virtual EventHandle create_event() = 0;
  virtual void destroy_event(EventHandle event) noexcept = 0;
  virtual void record(StreamHandle stream, EventHandle event) = 0;
  virtual void wait(StreamHandle stream, EventHandle event) = 0;
  virtual bool query(EventHandle event) = 0;
  virtual void synchronize_event(EventHandle event) = 0;
  virtual void enqueue(StreamHandle stream, StreamWork work) = 0;

  /// A held stream takes up nothing: for tests.
  virtual void hold(StreamHandle stream, bool held) = 0;
  virtual bool wants_accesses() const noexcept { return false; }
};

}  // namespace segfuse::runtime
