#pragma once
// Who this process is among those that a launcher started together: what torchrun, srun, the
// launcher of an MPI, or segfuse's own says in the environment.

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

namespace segfuse {

struct Ranks {
  std::int64_t count = 1;
  std::int64_t rank = 0;                    ///< 0 to count - 1
  std::optional<std::int64_t> local_rank;   ///< among those on this machine, where somebody says it
  std::optional<std::int64_t> local_count;  ///< how many are on this machine
  std::string launcher;                     ///< "torchrun", "Slurm", "Open MPI", ...
  std::string variable;                     ///< of the environment, which says the count
  /// Where rank 0 waits for the others: MASTER_ADDR and MASTER_PORT; else the machine that the
  /// launcher's words imply. Empty and 0 where nobody says it; 0 where torchrun itself is there.
  std::string host;
  int port = 0;
  std::string job;  ///< the launcher's name for this job, the same on all ranks; empty without one
};

/// The value of a variable, null where it is not set.
using Variables = std::function<const char*(const char* name)>;

/// Nothing where a launcher started this process alone, and where there is no launcher. A job of
/// Slurm that did not start this process by srun has one process, however many tasks it may start.
///
/// A launcher may start another one: srun starts one torchrun a machine, mpirun starts its helpers
/// by srun. The inner one is believed then. Throws UsageError that names the variables with their
/// values where two launchers contradict each other, for a number that is none, for a rank beyond
/// the count, and where there is a count without a rank.
std::optional<Ranks> ranks_of_environment();
std::optional<Ranks> ranks_of(const Variables& variables);

/// The variables by which launchers tell processes who they are. Who starts ranks of its own takes
/// them away.
std::vector<std::string> launcher_variables();

}  // namespace segfuse
