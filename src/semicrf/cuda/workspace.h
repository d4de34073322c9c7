#pragma once
// One block of device memory per call, cut into arrays.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "semicrf/cuda/queue.h"

namespace segfuse::semicrf::gpu {

/// Arrays are declared first, then the block is allocated, then their addresses are known.
class Workspace {
 public:
  Workspace(Queue& queue, runtime::StreamHandle stream) : queue_(queue), stream_(stream) {}
  ~Workspace() {
    if (memory_ != nullptr) queue_.release(memory_, stream_);
  }
  Workspace(const Workspace&) = delete;
  Workspace& operator=(const Workspace&) = delete;

  /// `pointer` is set by allocate(); n = 0 leaves it null.
  template <class T>
  void add(T*& pointer, std::int64_t n) {
    pointer = nullptr;
    if (n == 0) return;
    parts_.push_back({reinterpret_cast<void**>(&pointer), size_});
    size_ += (static_cast<std::size_t>(n) * sizeof(T) + kAlignment - 1) / kAlignment * kAlignment;
  }
  void allocate() {
    if (size_ == 0) return;
    memory_ = queue_.allocate(size_, stream_);
    for (const Part& part : parts_) *part.pointer = memory_ + part.offset;
  }

 private:
  struct Part {
    void** pointer;
    std::size_t offset;
  };
  static constexpr std::size_t kAlignment = 256;
  Queue& queue_;
  runtime::StreamHandle stream_;
  std::vector<Part> parts_;
  std::size_t size_ = 0;
  std::byte* memory_ = nullptr;
};

}  // namespace segfuse::semicrf::gpu
