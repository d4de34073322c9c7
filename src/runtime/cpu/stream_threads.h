#pragma once
// One thread per stream.

#include <thread>
#include <vector>

#include "base/mutex.h"
#include "runtime/cpu/stream_engine.h"

namespace segfuse::runtime {

class StreamThreads final : public StreamEngine {
 public:
  StreamThreads() = default;
  ~StreamThreads() override;
  StreamThreads(const StreamThreads&) = delete;
  StreamThreads& operator=(const StreamThreads&) = delete;

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

 private:
  static constexpr std::uint64_t kNever = ~std::uint64_t{0};
  struct Stream {
    StreamHandle handle;
    std::uint64_t identity = 0;
    std::deque<StreamItem> items;
    std::uint64_t enqueued = 0;
    std::uint64_t done = 0;
    std::uint64_t wake_at = kNever;  ///< somebody is to be woken when so many are done
    bool held = false;
    bool closing = false;  ///< ends when it is empty
    bool ended = false;
    std::exception_ptr failure;
    ConditionVariable awake;
    std::thread thread;
  };

  void serve(Stream& stream);
  void serve_item(Stream& stream, StreamItem item, MutexLock& lock) SEGFUSE_REQUIRES(mutex_);
  void push(Stream& stream, StreamItem item) SEGFUSE_REQUIRES(mutex_);
  void wait_until_done(Stream& stream, MutexLock& lock) SEGFUSE_REQUIRES(mutex_);
  void wait_for(Recording& recording, MutexLock& lock) SEGFUSE_REQUIRES(mutex_);
  void join_ended() SEGFUSE_REQUIRES(mutex_);

  Mutex mutex_;  ///< guards all that follows, and the streams' and recordings' content
  ConditionVariable progress_;  ///< of those who wait
  bool stopping_ SEGFUSE_GUARDED_BY(mutex_) = false;
  std::uint64_t made_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  HandleTable<Stream, StreamHandle> streams_ SEGFUSE_GUARDED_BY(mutex_){"stream"};
  HandleTable<StreamEvent, EventHandle> events_ SEGFUSE_GUARDED_BY(mutex_){"event"};
  std::vector<std::shared_ptr<Stream>> all_
      SEGFUSE_GUARDED_BY(mutex_);  ///< streams whose threads were not joined
};

}  // namespace segfuse::runtime
