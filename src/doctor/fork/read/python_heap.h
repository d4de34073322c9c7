#pragma once
// Where CPython keeps objects of up to 512 bytes, read from outside: pools of 16 KiB (of 4 KiB
// before 3.10) for blocks of one size, in memory of its own beside malloc's.
//
// Layouts are those of 64-bit CPython 3.8 and later, but for the free-threaded one, which has
// another allocator. A pool is believed only if it adds up: the blocks in use and those in its free
// list are all that were ever handed out.

#include <cstdint>
#include <optional>
#include <vector>

#include "doctor/fork/read/process.h"

namespace segfuse::doctor {

struct PythonPool {
  std::uint64_t begin = 0;
  std::uint64_t bytes = 0;
  std::uint64_t block_bytes = 0;
  std::vector<std::uint64_t> live;  ///< addresses of blocks in use, in order

  std::uint64_t end() const { return begin + bytes; }
};

/// The pool that `address` lies in, if its memory says that it is one.
std::optional<PythonPool> python_pool_of(const MemoryReader& memory, std::uint64_t address);

}  // namespace segfuse::doctor
