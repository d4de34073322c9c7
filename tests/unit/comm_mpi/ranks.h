#pragma once
// What this program does when an MPI's launcher starts it: `segfuse_test_comm_mpi rank JOB ...`.

#include <span>
#include <string>

namespace segfuse::test {

/// Does the job as one rank; what main() returns. Whatever a rank finds wrong ends all ranks.
int run_as_rank(std::span<const std::string> arguments);

}  // namespace segfuse::test
