#include "runtime/memory/buffer.h"

#include <exception>
#include <mutex>

#include "runtime/memory/heap.h"
#include "runtime/timeline.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

void Buffer::release(Block* block) noexcept { block->heap->release(block); }

Borrow Buffer::borrow(Timeline& timeline, StreamId stream) const {
  if (block_ == nullptr) throw UsageError("borrow: the buffer is empty; allocate it first");
  Frontier uses;
  {
    const std::lock_guard lock(block_->uses_lock);
    uses = block_->uses;
  }
  timeline.order_after(stream, uses);
  return Borrow(*this, timeline, stream);
}

void Buffer::record_stream(Timeline& timeline, StreamId stream) const {
  if (block_ == nullptr) throw UsageError("record_stream: the buffer is empty; allocate it first");
  const StreamTick use = timeline.touch(stream);
  const std::lock_guard lock(block_->uses_lock);
  block_->uses.raise(use);
}

Borrow::~Borrow() {
  if (!buffer_) return;
  Block* const block = buffer_.block_;
  StreamTick use;
  try {
    use = timeline_->touch(stream_);
  } catch (const std::exception&) {
    return;  // the stream was retired, so what it did is over
  }
  const std::lock_guard lock(block->uses_lock);
  block->uses.drop_if([&](StreamTick former) { return timeline_->covered(stream_, former); });
  block->uses.raise(use);
  block->write = use;
}

}  // namespace segfuse::runtime
