#include "doctor/fork/read/python_heap.h"

#include <cstring>
#include <span>

namespace segfuse::doctor {

namespace {

constexpr std::uint32_t kSizes = 32;  ///< of blocks: 16 to 512 bytes
constexpr std::uint32_t kUnit = 16;

/// The first bytes of a pool.
struct Header {
  std::uint32_t count;  ///< blocks in use
  std::uint32_t padding;
  std::uint64_t free;  ///< the first block of the free list
  std::uint64_t next_pool;
  std::uint64_t former_pool;
  std::uint32_t arena;
  std::uint32_t size_index;
  std::uint32_t next_offset;       ///< of what was never handed out
  std::uint32_t most_next_offset;  ///< where the last block begins
};
static_assert(sizeof(Header) == 48);

std::optional<PythonPool> pool_at(const MemoryReader& memory, std::uint64_t begin,
                                  std::uint32_t bytes) {
  Header header;
  if (memory.read(begin, std::as_writable_bytes(std::span(&header, 1))) != sizeof header)
    return std::nullopt;
  if (header.size_index >= kSizes) return std::nullopt;
  const std::uint32_t block = (header.size_index + 1) * kUnit;
  const std::uint32_t most = (bytes - static_cast<std::uint32_t>(sizeof header)) / block;
  if (header.most_next_offset != bytes - block || header.count > most) return std::nullopt;
  const std::uint32_t used_end = header.next_offset;
  if (used_end < sizeof header + block || used_end > bytes ||
      (used_end - sizeof header) % block != 0)
    return std::nullopt;
  std::vector<std::byte> text(bytes);
  if (memory.read(begin, text) != bytes) return std::nullopt;
  const std::uint32_t handed_out = (used_end - static_cast<std::uint32_t>(sizeof header)) / block;
  std::vector<bool> free(handed_out, false);
  std::uint32_t free_count = 0;
  for (std::uint64_t at = header.free; at != 0; ++free_count) {
    const std::uint64_t offset = at - begin - sizeof header;
    if (at < begin + sizeof header || at >= begin + used_end || offset % block != 0)
      return std::nullopt;
    const std::uint64_t index = offset / block;
    if (free[index]) return std::nullopt;  // a circle
    free[index] = true;
    std::memcpy(&at, text.data() + (at - begin), sizeof at);
  }
  if (header.count + free_count != handed_out) return std::nullopt;
  PythonPool pool{begin, bytes, block, {}};
  for (std::uint32_t i = 0; i < handed_out; ++i)
    if (!free[i]) pool.live.push_back(begin + sizeof header + std::uint64_t{i} * block);
  return pool;
}

}  // namespace

std::optional<PythonPool> python_pool_of(const MemoryReader& memory, std::uint64_t address) {
  // The process may be just changing it.
  for (int attempt = 0; attempt < 3; ++attempt)
    for (const std::uint32_t bytes : {16384U, 4096U})
      if (auto pool = pool_at(memory, address & ~std::uint64_t{bytes - 1}, bytes)) return pool;
  return std::nullopt;
}

}  // namespace segfuse::doctor
