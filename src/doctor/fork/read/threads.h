#pragma once
// Where the threads of a process have their stacks, and which arena each allocates from.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "doctor/fork/read/process.h"
#include "doctor/fork/read/smaps.h"

namespace segfuse::doctor {

struct ThreadPlace {
  int id = 0;
  std::string name;
  std::uint64_t stack_pointer = 0;  ///< 0: it was running, or may not be asked
  std::uint64_t descriptor = 0;     ///< glibc's, at the upper end of its stack; 0: not found
  // Whole pages; both 0 without a descriptor.
  std::uint64_t stack_begin = 0;  ///< with its guard
  std::uint64_t stack_end = 0;    ///< behind the descriptor
};

/// The first thread, then the others in the order of their numbers. A running thread is asked a few
/// times for its stack pointer; its descriptor is found without it, from those of the others.
std::vector<ThreadPlace> find_threads(const Process& process, const std::vector<Vma>& vmas,
                                      const std::vector<Mapping>& mappings);

/// Number of the thread that keeps `arena` in its thread-local memory; nothing if none does.
std::optional<int> thread_of_arena(const MemoryReader& memory,
                                   const std::vector<ThreadPlace>& threads, std::uint64_t arena);

}  // namespace segfuse::doctor
