#pragma once
// Ranks on this machine, started by an MPI's launcher: ranks of an MPI have to be its children.

#include <string>
#include <vector>

namespace segfuse::comm {

/// Runs `command` as `ranks` ranks by the mpirun or mpiexec of PATH, with this process's streams,
/// and returns its exit code. SIGINT, SIGTERM, SIGHUP and SIGUSR1 are passed on to it. The ranks
/// share the processors: SEGFUSE_THREADS says how many each has, unless it is set. CommError where
/// no launcher is found or it cannot start.
int start_mpi_ranks(int ranks, const std::vector<std::string>& command);

}  // namespace segfuse::comm
