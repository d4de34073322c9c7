#pragma once
// Whether a launcher started this process together with others.

#include <cstdint>
#include <optional>
#include <string>

namespace segfuse {

struct Ranks {
  std::int64_t count = 1;
  std::string variable;  ///< of the environment, which says so
};

/// What torchrun, srun, or the launcher of an MPI says about the processes it started; nothing
/// where it started this one alone, and where there is none. A job of Slurm that did not start this
/// process by srun has one process, however many tasks it may start.
std::optional<Ranks> ranks_of_environment();

}  // namespace segfuse
