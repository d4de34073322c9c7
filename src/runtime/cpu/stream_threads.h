#pragma once
// One thread per stream.

#include <condition_variable>
#include <mutex>
#include <thread>
#include <vector>

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
  EventHandle create_event() override;
  void destroy_event(EventHandle event) noexcept override;
  void record(EventHandle event, StreamHandle stream) override;
  void wait(StreamHandle stream, EventHandle event) override;
  bool query(EventHandle event) override;
  void synchronize_event(EventHandle event) override;
  void enqueue(StreamHandle stream, StreamWork work) override;
  void hold(StreamHandle stream, bool held) override;

 private:
  struct Stream {
    StreamHandle handle = nullptr;
    std::deque<StreamItem> items;
    std::uint64_t enqueued = 0;
    std::uint64_t done = 0;
    bool held = false;
    bool closing = false;  ///< ends when it is empty
    bool ended = false;
    std::exception_ptr failure;
    std::condition_variable awake;
    std::thread thread;
  };

  void serve(Stream& stream);
  void serve_item(Stream& stream, StreamItem item, std::unique_lock<std::mutex>& lock);
  void push(Stream& stream, StreamItem item);
  void join_ended();

  std::mutex mutex_;  ///< guards all that follows, and the streams' and recordings' content
  std::condition_variable progress_;  ///< an item was done
  bool stopping_ = false;
  HandleTable<Stream> streams_{"stream"};
  HandleTable<StreamEvent> events_{"event"};
  std::vector<std::shared_ptr<Stream>> all_;  ///< streams whose threads were not joined
};

}  // namespace segfuse::runtime
