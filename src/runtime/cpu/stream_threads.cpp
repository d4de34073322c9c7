#include "runtime/cpu/stream_threads.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "base/code/float_mode.h"
#include "base/mutex.h"

namespace segfuse::runtime {

StreamThreads::~StreamThreads() {
  {
    const MutexLock lock(mutex_);
    stopping_ = true;
    for (const auto& stream : all_) stream->awake.notify_all();
    progress_.notify_all();
  }
  for (const auto& stream : all_) stream->thread.join();
}

StreamHandle StreamThreads::create_stream() {
  const MutexLock lock(mutex_);
  join_ended();
  auto stream = std::make_shared<Stream>();
  stream->handle = streams_.add(stream);
  stream->identity = ++made_;
  all_.push_back(stream);
  try {
    stream->thread = std::thread([this, stream = stream.get()] { serve(*stream); });
  } catch (const std::system_error& error) {
    all_.pop_back();
    streams_.remove(stream->handle);
    throw DeviceError(fmt::format("a stream's thread cannot be started: {}", error.what()));
  }
  return stream->handle;
}

void StreamThreads::destroy_stream(StreamHandle handle) noexcept {
  const MutexLock lock(mutex_);
  const std::shared_ptr<Stream> stream = streams_.remove(handle);
  if (stream == nullptr) return;
  stream->closing = true;
  stream->held = false;
  stream->awake.notify_all();
}

/// A thread that has ended needs the mutex no more.
void StreamThreads::join_ended() {
  std::erase_if(all_, [](const std::shared_ptr<Stream>& stream) {
    if (stream->ended) stream->thread.join();
    return stream->ended;
  });
}

void StreamThreads::serve(Stream& stream) {
  const FloatMode mode(Denormals::kKept);  // a thread inherits that of its maker
  MutexLock lock(mutex_);
  for (;;) {
    while (!stopping_ && (stream.held || (!stream.closing && stream.items.empty())))
      stream.awake.wait(lock);
    if (stopping_ || stream.items.empty()) break;
    StreamItem item = std::move(stream.items.front());
    stream.items.pop_front();
    serve_item(stream, std::move(item), lock);
    if (++stream.done < stream.wake_at) continue;
    stream.wake_at = kNever;
    progress_.notify_all();
  }
  stream.ended = true;
}

void StreamThreads::serve_item(Stream& stream, StreamItem item, MutexLock& lock) {
  if (item.record != nullptr) {
    item.record->failure = stream.failure;
    item.record->done = true;
    if (item.record->waited_for) progress_.notify_all();
    return;
  }
  if (item.wait != nullptr) {
    wait_for(*item.wait, lock);
    if (stream.failure == nullptr) stream.failure = item.wait->failure;
    return;
  }
  const bool skip = stream.failure != nullptr;
  std::exception_ptr failure;
  mutex_.unlock();
  try {
    if (!skip && item.work.run) item.work.run(stream.handle);
  } catch (...) {
    failure = std::current_exception();
  }
  item = {};  // what the work holds on to is dropped without the lock
  mutex_.lock();
  if (stream.failure == nullptr) stream.failure = std::move(failure);
}

void StreamThreads::wait_for(Recording& recording, MutexLock& lock) {
  recording.waited_for = true;
  while (!stopping_ && !recording.done) progress_.wait(lock);
}

void StreamThreads::push(Stream& stream, StreamItem item) {
  stream.items.push_back(std::move(item));
  ++stream.enqueued;
  stream.awake.notify_one();
}

/// Of what is enqueued now.
void StreamThreads::wait_until_done(Stream& stream, MutexLock& lock) {
  const std::uint64_t target = stream.enqueued;
  while (stream.done < target) {
    stream.wake_at = std::min(stream.wake_at, target);
    progress_.wait(lock);
  }
}

std::uint64_t StreamThreads::identity(StreamHandle handle) {
  const MutexLock lock(mutex_);
  return streams_.find(handle)->identity;
}

void StreamThreads::drain() {
  MutexLock lock(mutex_);
  const auto streams = all_;
  for (const auto& stream : streams) wait_until_done(*stream, lock);
}

void StreamThreads::synchronize(StreamHandle handle) {
  MutexLock lock(mutex_);
  const std::shared_ptr<Stream> stream = streams_.find(handle);
  wait_until_done(*stream, lock);
  const std::exception_ptr failure = std::exchange(stream->failure, nullptr);
  lock.unlock();
  if (failure != nullptr) std::rethrow_exception(failure);
}

bool StreamThreads::idle(StreamHandle handle) {
  const MutexLock lock(mutex_);
  const std::shared_ptr<Stream> stream = streams_.find(handle);
  return stream->done == stream->enqueued;
}

EventHandle StreamThreads::create_event() {
  const MutexLock lock(mutex_);
  return events_.add(std::make_shared<StreamEvent>());
}

void StreamThreads::destroy_event(EventHandle event) noexcept {
  const MutexLock lock(mutex_);
  events_.remove(event);
}

void StreamThreads::record(StreamHandle handle, EventHandle event) {
  const MutexLock lock(mutex_);
  Stream& stream = *streams_.find(handle);
  StreamEvent& found = *events_.find(event);
  auto recording = std::make_shared<Recording>();
  push(stream, {{}, recording, nullptr});
  found.last = std::move(recording);
}

void StreamThreads::wait(StreamHandle handle, EventHandle event) {
  const MutexLock lock(mutex_);
  Stream& stream = *streams_.find(handle);
  const std::shared_ptr<Recording>& recording = events_.find(event)->last;
  if (recording != nullptr) push(stream, {{}, nullptr, recording});
}

bool StreamThreads::query(EventHandle event) {
  const MutexLock lock(mutex_);
  const std::shared_ptr<Recording>& recording = events_.find(event)->last;
  return recording == nullptr || recording->done;
}

void StreamThreads::synchronize_event(EventHandle event) {
  MutexLock lock(mutex_);
  const std::shared_ptr<Recording> recording = events_.find(event)->last;
  if (recording == nullptr) return;
  wait_for(*recording, lock);
  const std::exception_ptr failure = recording->failure;
  lock.unlock();
  if (failure != nullptr) std::rethrow_exception(failure);
}

void StreamThreads::enqueue(StreamHandle handle, StreamWork work) {
  const MutexLock lock(mutex_);
  push(*streams_.find(handle), {std::move(work), nullptr, nullptr});
}

void StreamThreads::hold(StreamHandle handle, bool held) {
  const MutexLock lock(mutex_);
  Stream& stream = *streams_.find(handle);
  stream.held = held;
  stream.awake.notify_all();
}

}  // namespace segfuse::runtime
