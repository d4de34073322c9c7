#pragma once
// Freed small blocks of one stream, handed out again for that stream: last in, first out.

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "runtime/memory/block.h"
#include "runtime/memory/size_class.h"

namespace segfuse::runtime {

/// The uses of a block in here are of this stream alone, so what is enqueued on it next comes after
/// them. All members are under `lock`.
struct alignas(128) Magazine {
  SpinLock lock;
  std::array<Block*, kClasses> head{};
  std::size_t bytes = 0;
  std::size_t blocks = 0;
  std::uint64_t hits = 0;

  void push(Block* block) {
    block->state = BlockState::kCached;
    block->next_cached = head[block->size_class];
    head[block->size_class] = block;
    bytes += block->bytes;
    ++blocks;
  }
  Block* pop(std::size_t size_class) {
    Block* const block = head[size_class];
    if (block == nullptr) return nullptr;
    head[size_class] = block->next_cached;
    block->state = BlockState::kLive;
    bytes -= block->bytes;
    --blocks;
    ++hits;
    return block;
  }
  /// Takes all, the last pushed of the smallest class first.
  std::vector<Block*> empty() {
    std::vector<Block*> taken;
    taken.reserve(blocks);
    for (Block*& first : head)
      for (; first != nullptr; first = first->next_cached) taken.push_back(first);
    bytes = blocks = 0;
    return taken;
  }
};

}  // namespace segfuse::runtime
