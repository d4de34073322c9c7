#pragma once
// What glibc's malloc keeps in memory, read from outside: blocks ("chunks") with their sizes in
// front of them, heaps of 64 MiB that other threads than the first allocate from, and the header
// ("arena") that every fork() unlocks in the child.
//
// Layouts are those of 64-bit glibc 2.26 to 2.4x. Nothing is believed that does not add up: a walk
// over chunks counts only if it ends where the heap does.

#include <cstdint>
#include <optional>
#include <vector>

#include "doctor/fork/read/process.h"

namespace segfuse::doctor {

struct Chunk {
  std::uint64_t begin = 0;  ///< of its header
  std::uint64_t bytes = 0;  ///< with the header
  bool live = false;        ///< blocks in a thread's cache count as live: malloc does not mark them
  std::uint64_t end() const { return begin + bytes; }
};

struct ChunkWalk {
  std::vector<Chunk> chunks;  ///< by address
  bool complete = false;      ///< ended exactly at the end of the heap
};

/// The chunks from `first` to `end`. Stops at the first that makes no sense, or after `most`.
ChunkWalk walk_chunks(const MemoryReader& memory, std::uint64_t first, std::uint64_t end,
                      std::size_t most = std::size_t{1} << 22);

/// A heap of 64 MiB, or the part of it that may be used.
struct ArenaHeap {
  std::uint64_t base = 0;
  std::uint64_t end = 0;    ///< of what may be used
  std::uint64_t arena = 0;  ///< the header, here or in the arena's first heap
  std::uint64_t arena_end = 0;
  std::uint64_t first_chunk = 0;
  bool holds_arena = false;
};

/// The arena's heap that `address` lies in, if its first bytes say that it is one.
std::optional<ArenaHeap> arena_heap_of(const MemoryReader& memory, std::uint64_t address);

/// Finds the block with a mapping of its own (above 128 KiB) that covers an address.
/// Keeps what it found; `probes` bounds all of its searching.
class MmappedChunks {
 public:
  explicit MmappedChunks(const MemoryReader& memory) : memory_(&memory), window_(memory) {}
  /// Within the mapping [begin, end) of whole pages.
  std::optional<Chunk> covering(std::uint64_t address, std::uint64_t begin, std::uint64_t end);

 private:
  std::optional<Chunk> header_at(std::uint64_t page, std::uint64_t end);
  const MemoryReader* memory_;
  MemoryWindow window_;
  std::optional<Chunk> last_;
  std::uint64_t nothing_begin_ = 0;  ///< no header starts in [nothing_begin_, nothing_end_)
  std::uint64_t nothing_end_ = 0;
  std::size_t probes_ = std::size_t{1} << 16;
};

}  // namespace segfuse::doctor
