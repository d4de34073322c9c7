#pragma once
// Ranks that an MPI's launcher started as processes. MPI is opened at run time (choice.h); it is
// used through FUNNELED threads, and waits here give the processor away, since MPI's own do not.

#include <memory>

#include "comm/group.h"

namespace segfuse::comm {

struct MpiOptions {
  /// Larger spans go as several messages; MPI counts bytes in an int.
  std::int64_t largest_message = std::int64_t{1} << 30;
};

/// All ranks of the launcher. Its calls come from the thread that opened it. abort() says its
/// reason on stderr and ends all processes by MPI_Abort; from another thread it takes effect when
/// that thread is next inside a call. CommError if there is no launcher, no MPI that fits it, or
/// another number of ranks than it started. MPI starts once in a process: so does this.
std::unique_ptr<Group> open_mpi_group(const MpiOptions& options = {});

}  // namespace segfuse::comm
