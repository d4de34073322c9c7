#include "doctor/fork/read/glibc_heap.h"

#include "doctor/fork/page.h"

namespace segfuse::doctor {

namespace {

constexpr std::uint64_t kHeap = std::uint64_t{64} << 20;
// Low bits of a chunk's size.
constexpr std::uint64_t kPreviousLive = 1;
constexpr std::uint64_t kMapped = 2;
constexpr std::uint64_t kFlags = 7;
/// sizeof(struct malloc_state) since 2.26.
constexpr std::uint64_t kArena = 0x898;
/// The header of a heap, before and since 2.35.
constexpr std::uint64_t kHeapHeaders[] = {0x30, 0x20};

std::uint64_t aligned(std::uint64_t address) { return (address + 15) & ~std::uint64_t{15}; }

}  // namespace

ChunkWalk walk_chunks(const MemoryReader& memory, std::uint64_t first, std::uint64_t end,
                      std::size_t most) {
  ChunkWalk walk;
  MemoryWindow window(memory);
  std::uint64_t at = first;
  while (at + 16 <= end && walk.chunks.size() < most) {
    std::uint64_t size = 0;
    if (!window.word(at + 8, size)) return walk;
    if (!walk.chunks.empty()) walk.chunks.back().live = (size & kPreviousLive) != 0;
    const std::uint64_t bytes = size & ~kFlags;
    // A fence post has 16 bytes; nothing else has fewer than 32.
    if (bytes < 16 || bytes % 16 != 0 || bytes > end - at || (size & kMapped) != 0) return walk;
    walk.chunks.push_back({at, bytes, false});
    at += bytes;
  }
  // What is left after the last one belongs to no chunk: less than a header, never a page.
  walk.complete = !walk.chunks.empty() && end - at < 16;
  return walk;
}

std::optional<ArenaHeap> arena_heap_of(const MemoryReader& memory, std::uint64_t address) {
  MemoryWindow window(memory);
  ArenaHeap heap;
  heap.base = address & ~(kHeap - 1);
  std::uint64_t former = 0;
  std::uint64_t bytes = 0;
  if (heap.base == 0 || !window.word(heap.base, heap.arena) ||
      !window.word(heap.base + 8, former) || !window.word(heap.base + 16, bytes))
    return std::nullopt;
  const std::uint64_t header = heap.arena & (kHeap - 1);
  if ((header != kHeapHeaders[0] && header != kHeapHeaders[1]) || bytes > kHeap || bytes < kPage ||
      bytes % kPage != 0 || (former & (kHeap - 1)) != 0)
    return std::nullopt;
  heap.end = heap.base + bytes;
  heap.arena_end = heap.arena + kArena;
  heap.holds_arena = heap.arena == heap.base + header;
  if (heap.holds_arena != (former == 0)) return std::nullopt;
  heap.first_chunk = heap.holds_arena ? aligned(heap.arena_end) : heap.base + header;
  return address < heap.end ? std::optional(heap) : std::nullopt;
}

std::optional<Chunk> MmappedChunks::header_at(std::uint64_t page, std::uint64_t end) {
  std::uint64_t before = 0;
  std::uint64_t size = 0;
  if (!window_.word(page, before) || !window_.word(page + 8, size)) return std::nullopt;
  const std::uint64_t bytes = size & ~kFlags;
  if (before != 0 || (size & kFlags) != kMapped || bytes < kPage || bytes % kPage != 0 ||
      bytes > end - page)
    return std::nullopt;
  return Chunk{page, bytes, true};
}

std::optional<Chunk> MmappedChunks::covering(std::uint64_t address, std::uint64_t begin,
                                             std::uint64_t end) {
  if (last_ && last_->begin >= begin && address >= last_->begin && address < last_->end())
    return last_;
  // From the front, block by block: neighbours are one mapping to the kernel.
  for (std::uint64_t at = begin; at <= address;) {
    const std::optional<Chunk> chunk = header_at(at, end);
    if (!chunk) break;
    if (address < chunk->end()) return last_ = chunk;
    at = chunk->end();
  }
  // Something else comes first: back from the address.
  const std::uint64_t start = page_begin(address);
  for (std::uint64_t page = start; page >= begin && probes_ > 0; page -= kPage, --probes_) {
    if (page >= nothing_begin_ && page < nothing_end_) {
      nothing_end_ = start + kPage;
      return std::nullopt;
    }
    // Only the front of a page counts, so no window: it would read all that lies between.
    std::uint64_t words[2] = {};
    if (memory_->read(page, std::as_writable_bytes(std::span(words))) == sizeof words) {
      const std::optional<Chunk> chunk =
          words[0] == 0 && (words[1] & kFlags) == kMapped ? header_at(page, end) : std::nullopt;
      if (chunk && address < chunk->end()) return last_ = chunk;
      if (chunk) break;
    }
    if (page < kPage) break;
  }
  nothing_begin_ = begin;
  nothing_end_ = start + kPage;
  return std::nullopt;
}

}  // namespace segfuse::doctor
