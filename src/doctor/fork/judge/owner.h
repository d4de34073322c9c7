#pragma once
// Whose memory a range of a process is.

#include <map>
#include <optional>
#include <string>
#include <vector>

#include "doctor/fork/read/glibc_heap.h"
#include "doctor/fork/read/images.h"
#include "doctor/fork/read/process.h"
#include "doctor/fork/read/smaps.h"
#include "doctor/fork/read/threads.h"

namespace segfuse::doctor {

enum class OwnerKind {
  kHeapChunk,     ///< malloc's first heap, behind the program
  kArenaHeader,   ///< what malloc in another thread needs for anything
  kArenaChunk,    ///< a block in such a thread's heap
  kMmappedChunk,  ///< a malloc block with a mapping of its own
  kPythonPool,    ///< small objects of Python
  kThreadStack,
  kMainStack,
  kBss,
  kData,
  kFile,
  kMemfd,
  kSlab,  ///< registered memory that owns its pages
  kShared,
  kDriver,
  kWhole,     ///< an anonymous mapping, all of it
  kAnonymous  ///< a part of one: another allocator's, or several mappings that touch
};
/// "heap chunk"
const char* owner_name(OwnerKind kind);

struct Owner {
  OwnerKind kind = OwnerKind::kAnonymous;
  std::string sentence = {};
  std::optional<std::uint64_t> live = std::nullopt;  ///< malloc blocks in use in these pages
  std::uint64_t headers = 0;                         ///< of malloc blocks that begin in these pages
  bool live_stack = false;                           ///< frames that a thread returns to
  bool of_libc = false;                              ///< libc's or the loader's own variables
  bool unused_heap = false;                          ///< where malloc takes new blocks from
  bool whole_chunk = false;                          ///< all pages of one block, and nothing else's
};

/// Answers for many ranges of one process; what a heap holds is read once.
class Owners {
 public:
  Owners(const Process& process, const std::vector<Vma>& vmas, std::vector<Mapping> mappings);

  /// Finds out where stacks and variables end, and cuts the mappings there.
  void find_ends();
  /// By address.
  const std::vector<Mapping>& mappings() const { return mappings_; }

  /// Of [begin, end), which lies in `mappings()[mapping]`.
  Owner of(std::uint64_t begin, std::uint64_t end, std::size_t mapping);
  const std::vector<ThreadPlace>& threads() const { return threads_; }
  /// False after a heap did not add up: the process was changing it, or it is not glibc's.
  bool consistent() const { return consistent_; }

 private:
  const ChunkWalk& chunks_of(std::uint64_t first, std::uint64_t end);
  void describe_chunks(Owner& owner, std::uint64_t begin, std::uint64_t end,
                       const ChunkWalk& walk) const;
  std::optional<Owner> in_arena(std::uint64_t begin, std::uint64_t end);
  std::optional<Owner> in_stack(std::uint64_t begin, std::uint64_t end, const Mapping& mapping);
  std::optional<Owner> in_program(std::uint64_t begin, std::uint64_t end, std::size_t mapping);
  const Vma* file_before(std::size_t mapping) const;
  std::string names_of(const Variables& part, std::uint64_t begin, std::uint64_t end);
  std::optional<Owner> in_python(std::uint64_t begin, std::uint64_t end) const;
  Owner in_heap(std::uint64_t begin, std::uint64_t end, const Mapping& mapping);
  Owner in_file(std::uint64_t begin, std::uint64_t end, const Mapping& mapping) const;
  Owner in_anonymous(std::uint64_t begin, std::uint64_t end, const Mapping& mapping);
  bool is_guarded(const Mapping& mapping) const;
  std::string thread_name(int id) const;

  const Process* memory_;
  const std::vector<Vma>* vmas_;
  std::vector<Mapping> mappings_;
  std::vector<ThreadPlace> threads_;
  std::vector<Variables> variables_;
  std::map<std::uint64_t, std::string> files_;  ///< texts, by where they are loaded
  MmappedChunks mmapped_;
  std::map<std::uint64_t, ChunkWalk> walks_;
  bool consistent_ = true;
};

}  // namespace segfuse::doctor
