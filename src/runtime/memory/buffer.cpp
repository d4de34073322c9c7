#include "runtime/memory/buffer.h"

#include <fmt/core.h>

#include <exception>
#include <mutex>

#include "runtime/memory/heap.h"
#include "runtime/timeline.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

void Buffer::release(Block* block) noexcept {
  if (block->heap != nullptr) return block->heap->release(block);
  delete static_cast<ForeignBlock*>(block);
}

Buffer Buffer::foreign(Device& device, std::byte* address, std::size_t bytes,
                       std::string_view label, std::shared_ptr<void> owner) {
  auto* const block = new ForeignBlock;
  block->address = address;
  block->bytes = block->requested = bytes;
  block->state = BlockState::kLive;
  block->references.store(1, std::memory_order_relaxed);
  block->label = label;
  block->device = &device;
  block->owner = std::move(owner);
  return Buffer(block);
}

Buffer Buffer::part(std::size_t offset, std::size_t bytes) const {
  if (offset > this->bytes() || bytes > this->bytes() - offset)
    throw UsageError(fmt::format("part: {} bytes from {} on of a buffer of {} bytes", bytes, offset,
                                 this->bytes()));
  Buffer part = *this;
  part.offset_ += offset;
  part.bytes_ = bytes;
  return part;
}

bool Buffer::is_foreign() const { return block_ != nullptr && block_->heap == nullptr; }

Device& Buffer::device() const {
  return block_->heap != nullptr ? block_->heap->device()
                                 : *static_cast<const ForeignBlock*>(block_)->device;
}

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
  block_->uses.drop_if([&](StreamTick former) { return timeline.covered(stream, former); });
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
