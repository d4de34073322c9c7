#pragma once
// Which MPI this process is a rank of. Another MPI than the launcher's would start and be alone in
// its world, as one of many ranks 0: so the launcher decides, and how many ranks it started is
// compared with what the MPI says.

#include <string>
#include <string_view>

#include "comm/mpi/mpi_table.h"

namespace segfuse::comm {

/// The launcher that started this process as one of several ranks.
struct MpiLauncher {
  std::string name;      ///< "Open MPI", "MPICH", "PMIx"; empty: none
  std::string variable;  ///< of the environment, which says so
  int ranks = 0;         ///< 0: the launcher does not say
};
MpiLauncher mpi_launcher();

struct ChosenMpi {
  const SegfuseMpiTable* table = nullptr;
  std::string where;  ///< the file
  MpiLauncher launcher;
};

/// The library that SEGFUSE_MPI names (one with the standard ABI, or a libsegfuse_mpi). Without it
/// what fits the launcher: libsegfuse_mpi beside segfuse's own code, if it was made for that MPI,
/// then libmpi_abi.so.1 beside the launcher, in the loader's folders, and beside the mpiexec of
/// PATH. CommError, which names what was tried, if none does.
ChosenMpi choose_mpi();

}  // namespace segfuse::comm
