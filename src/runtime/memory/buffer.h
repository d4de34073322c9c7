#pragma once
// Device memory that is held. The last handle to go gives the memory back, on any thread and at any
// time: nothing has to be kept alive for a stream, and no stream has to be named.

#include <cstddef>
#include <memory>
#include <string_view>
#include <utility>

#include "runtime/memory/block.h"
#include "runtime/tick.h"

namespace segfuse::runtime {

class Borrow;
class Device;
class Timeline;

/// A handle; copies share the memory. One handle is not to be used by two threads at once; copies
/// are.
class [[nodiscard]] Buffer {
 public:
  Buffer() = default;
  /// Memory of a device that somebody else holds, of which no use is known. `owner` is let go with
  /// the last handle, whatever the device still does: before that, either the host has seen all
  /// uses to be over, or what the owner does next is ordered after them.
  static Buffer foreign(Device& device, std::byte* address, std::size_t bytes,
                        std::string_view label, std::shared_ptr<void> owner = {});

  Buffer(const Buffer& other) noexcept
      : block_(other.block_), offset_(other.offset_), bytes_(other.bytes_) {
    if (block_ != nullptr) block_->references.fetch_add(1, std::memory_order_relaxed);
  }
  Buffer(Buffer&& other) noexcept
      : block_(std::exchange(other.block_, nullptr)),
        offset_(other.offset_),
        bytes_(other.bytes_) {}
  Buffer& operator=(Buffer other) noexcept {
    std::swap(block_, other.block_);
    std::swap(offset_, other.offset_);
    std::swap(bytes_, other.bytes_);
    return *this;
  }
  ~Buffer() { reset(); }

  void reset() noexcept {
    Block* const block = std::exchange(block_, nullptr);
    if (block != nullptr && block->references.fetch_sub(1, std::memory_order_acq_rel) == 1)
      release(block);
  }

  explicit operator bool() const { return block_ != nullptr; }
  /// A handle on `bytes` of this memory from `offset` on. Uses of a part are uses of all of the
  /// memory: two parts are ordered as the whole is. UsageError where that is beyond its end.
  Buffer part(std::size_t offset, std::size_t bytes) const;
  /// For work that is launched with this buffer among its uses, and for what is lent by borrow().
  std::byte* address() const { return block_ == nullptr ? nullptr : block_->address + offset_; }
  /// As requested; what was handed out may be more.
  std::size_t bytes() const { return block_ == nullptr ? 0 : bytes_; }
  std::string_view label() const { return block_ == nullptr ? std::string_view{} : block_->label; }
  bool is_foreign() const;
  /// Whose memory it is; the buffer is not empty.
  Device& device() const;
  /// Whether both are of one allocation, be they parts of it.
  bool same_memory(const Buffer& other) const { return block_ == other.block_; }

  /// Lends the memory to code that enqueues work on `stream` unseen (a library, a user's kernel, a
  /// tensor that is handed out). Orders the stream after all former uses; when the loan ends, a use
  /// at the stream's tail is recorded, as a write.
  Borrow borrow(Timeline& timeline, StreamId stream) const;
  /// Records that work enqueued on `stream` so far may use the memory. For code that cannot borrow:
  /// call it after that work was enqueued.
  void record_stream(Timeline& timeline, StreamId stream) const;

 private:
  friend class Borrow;
  friend class Executor;
  friend class Heap;
  explicit Buffer(Block* block) noexcept : block_(block), bytes_(block->requested) {}
  static void release(Block* block) noexcept;

  Block* block_ = nullptr;
  std::size_t offset_ = 0;
  std::size_t bytes_ = 0;
};

/// A loan of a buffer's memory to work that the runtime does not see; it ends with this object.
class Borrow {
 public:
  Borrow(Borrow&& other) noexcept = default;
  Borrow& operator=(Borrow&&) = delete;
  ~Borrow();
  std::byte* address() const { return buffer_.address(); }
  std::size_t bytes() const { return buffer_.bytes(); }

 private:
  friend class Buffer;
  Borrow(Buffer buffer, Timeline& timeline, StreamId stream)
      : buffer_(std::move(buffer)), timeline_(&timeline), stream_(stream) {}

  Buffer buffer_;
  Timeline* timeline_;
  StreamId stream_;
};

}  // namespace segfuse::runtime
