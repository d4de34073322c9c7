#pragma once
// An MPI that is known at run time only: a library with the standard ABI (MPI 5.0, chapter 20).

#include <string>

#include "comm/mpi/mpi_table.h"

namespace segfuse::comm {

/// The table over the library of that name; null, with the reason, where it cannot be opened or is
/// of another ABI. One library for the life of the process: the first that was opened.
const SegfuseMpiTable* open_mpi_abi(const std::string& library, std::string& reason);

}  // namespace segfuse::comm
