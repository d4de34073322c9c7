#include "runtime/executor.h"

#include <fmt/core.h>

#include <mutex>
#include <utility>
#include <vector>

#include "runtime/memory/heap.h"
#include "segfuse/error.h"

namespace segfuse::runtime {

// What the work has to come after.
Frontier Executor::before(StreamId stream, std::span<const Use> uses, const char* what,
                          bool any_device) const {
  const Device& device = timeline_->device(stream);
  Frontier needed;
  for (const Use& use : uses) {
    Block* const block = use.buffer->block_;
    if (block == nullptr)
      throw UsageError(fmt::format("{}: a buffer is empty; allocate it before it is used", what));
    if (&use.buffer->device() != &device && !any_device)
      throw UsageError(fmt::format(
          "{}: buffer '{}' is memory of {}, {} is a stream of {}; copy it first", what,
          block->label, use.buffer->device().name(), timeline_->name(stream), device.name()));
    const std::lock_guard lock(block->uses_lock);
    // Before the first write, what is there is the former holders'.
    if (use.write || !block->write.happened())
      needed.join(block->uses);
    else
      needed.raise(block->write);
  }
  return needed;
}

// Former uses that this one comes after are implied by it. After a write that does not come after
// all of them a reader waits for each.
void Executor::after(StreamId stream, std::span<const Use> uses, StreamTick now) {
  for (const Use& use : uses) {
    Block* const block = use.buffer->block_;
    const std::lock_guard lock(block->uses_lock);
    block->uses.drop_if([&](StreamTick former) { return timeline_->covered(stream, former); });
    const bool after_all = block->uses.empty();
    block->uses.raise(now);
    if (use.write) block->write = after_all ? now : StreamTick();
  }
}

StreamTick Executor::launch(StreamId stream, Work work, std::span<const Use> uses) {
  const Frontier needed = before(stream, uses, work.name.c_str(), false);
  return launch(stream, std::move(work), uses, needed);
}

StreamTick Executor::launch(StreamId stream, Work work, std::span<const Use> uses,
                            const Frontier& needed) {
  std::vector<MemoryAccess> accesses;
  accesses.reserve(uses.size());
  for (const Use& use : uses)
    accesses.push_back(
        {use.buffer->address(), use.buffer->bytes(), use.write, use.buffer->label()});
  timeline_->order_after(stream, needed);
  Device& device = timeline_->device(stream);
  const StreamTick now = timeline_->enqueue(
      stream, [&](StreamHandle handle) { device.launch(handle, std::move(work), accesses); });
  after(stream, uses, now);
  return now;
}

StreamTick Executor::copy(StreamId stream, const Buffer& to, std::size_t to_offset,
                          const Buffer& from, std::size_t from_offset, std::size_t bytes) {
  const std::array uses = {reads(from), writes(to)};
  const Frontier needed = before(stream, uses, "copy", true);
  if (to_offset > to.bytes() || bytes > to.bytes() - to_offset || from_offset > from.bytes() ||
      bytes > from.bytes() - from_offset)
    throw UsageError(fmt::format("copy: {} bytes from {} of {} to {} of {} do not fit", bytes,
                                 from_offset, from.bytes(), to_offset, to.bytes()));
  timeline_->order_after(stream, needed);
  Device& device = timeline_->device(stream);
  const StreamTick now = timeline_->enqueue(stream, [&](StreamHandle handle) {
    device.copy(handle, to.address() + to_offset, from.address() + from_offset, bytes);
  });
  after(stream, uses, now);
  return now;
}

StreamTick Executor::copy_host(StreamId stream, Use use, std::size_t offset, void* host,
                               std::size_t bytes) {
  const Frontier needed = before(stream, {&use, 1}, "copy", false);
  const Buffer& buffer = *use.buffer;
  if (offset > buffer.bytes() || bytes > buffer.bytes() - offset)
    throw UsageError(fmt::format("copy: {} bytes at {} of a buffer of {} do not fit", bytes, offset,
                                 buffer.bytes()));
  timeline_->order_after(stream, needed);
  Device& device = timeline_->device(stream);
  const StreamTick now = timeline_->enqueue(stream, [&](StreamHandle handle) {
    std::byte* const at = buffer.address() + offset;
    device.copy(handle, use.write ? at : host, use.write ? host : at, bytes);
  });
  after(stream, {&use, 1}, now);
  return now;
}

StreamTick Executor::copy_in(StreamId stream, const Buffer& to, std::size_t to_offset,
                             const std::byte* from, std::size_t bytes) {
  return copy_host(stream, writes(to), to_offset, const_cast<std::byte*>(from), bytes);
}

StreamTick Executor::copy_out(StreamId stream, std::byte* to, const Buffer& from,
                              std::size_t from_offset, std::size_t bytes) {
  return copy_host(stream, reads(from), from_offset, to, bytes);
}

StreamTick Executor::fill(StreamId stream, const Buffer& buffer, std::uint8_t value) {
  const std::array uses = {writes(buffer)};
  const Frontier needed = before(stream, uses, "fill", false);
  timeline_->order_after(stream, needed);
  Device& device = timeline_->device(stream);
  const StreamTick now = timeline_->enqueue(stream, [&](StreamHandle handle) {
    device.fill(handle, buffer.address(), value, buffer.bytes());
  });
  after(stream, uses, now);
  return now;
}

Frontier Executor::uses_of(const Buffer& buffer) const {
  const std::lock_guard lock(buffer.block_->uses_lock);
  return buffer.block_->uses;
}

void Executor::note(const Buffer& buffer, const Frontier& uses) {
  Block* const block = buffer.block_;
  const std::lock_guard lock(block->uses_lock);
  block->uses.join(uses);
}

void Executor::note_write(const Buffer& buffer, StreamTick write) {
  Block* const block = buffer.block_;
  const std::lock_guard lock(block->uses_lock);
  block->uses.raise(write);
  block->write = write;
}

void Executor::wait_written(const Buffer& buffer) {
  StreamTick write;
  {
    const std::lock_guard lock(buffer.block_->uses_lock);
    write = buffer.block_->write;
  }
  timeline_->synchronize(Frontier(write));
}

void Executor::wait_unused(const Buffer& buffer) { timeline_->synchronize(uses_of(buffer)); }

}  // namespace segfuse::runtime
