#pragma once
// The stream that a device's sums are made on, as all ways to make them need it.

#include <cstdint>
#include <functional>
#include <span>

#include "comm/device_exchange.h"
#include "runtime/open_device.h"

namespace segfuse::comm {

class AddNodes;

class SumStream {
 public:
  SumStream(runtime::OpenDevice& device, runtime::StreamId stream)
      : device_(device), stream_(stream) {}

  /// Throws InternalError where these are not this rank's nodes, or not as large as the sum.
  static void check(int rank, std::span<const runtime::Buffer> nodes, std::size_t own_nodes,
                    const runtime::Buffer& sum, const SumBegin& begin);

  /// Enqueues a piece of a sum; `scratch`: memory that only sums use, if there is any.
  void enqueue(runtime::Work work, std::span<const runtime::Use> uses, const SumBegin& begin,
               const runtime::Buffer& scratch = {});
  /// Makes the last node, where that is still to be done.
  void add_own(std::shared_ptr<const AddNodes> kernel, const SumBegin& begin, std::int64_t words,
               const runtime::Buffer& scratch = {});
  /// Waits until the last piece is over. `look` is called meanwhile, and once behind it.
  void wait(const std::function<void()>& look);

  runtime::OpenDevice& device() const { return device_; }
  runtime::StreamId id() const { return stream_; }

 private:
  runtime::OpenDevice& device_;
  const runtime::StreamId stream_;
  runtime::StreamTick last_work_;
};

}  // namespace segfuse::comm
