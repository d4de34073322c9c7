// libsegfuse_mpi: the table over the MPI that it was built with.

#include <mpi.h>

#include "comm/mpi/adapter.h"

namespace segfuse::comm {
namespace {

struct MachineMpi {
  using Comm = MPI_Comm;
  using Request = MPI_Request;
  using Status = MPI_Status;
  static constexpr int kFunneled = MPI_THREAD_FUNNELED;
  static constexpr int kErrorTextBytes = MPI_MAX_ERROR_STRING;
  static constexpr int kLibraryVersionBytes = MPI_MAX_LIBRARY_VERSION_STRING;
  static Comm world() { return MPI_COMM_WORLD; }
  static MPI_Datatype byte() { return MPI_BYTE; }
  static MPI_Errhandler errors_return() { return MPI_ERRORS_RETURN; }
#define X(member, function) static constexpr auto member = &function;
  SEGFUSE_MPI_FUNCTIONS(X)
#undef X
};

#if defined(OPEN_MPI)
constexpr const char* kMadeFor = "Open MPI";
#elif defined(MPICH_VERSION)
constexpr const char* kMadeFor = "MPICH";
#else
constexpr const char* kMadeFor = "";
#endif

}  // namespace
}  // namespace segfuse::comm

extern "C" __attribute__((visibility("default"))) const SegfuseMpiTable* segfuse_mpi() {
  using namespace segfuse::comm;
  static const SegfuseMpiTable table = MpiAdapter<MachineMpi>::table(kMadeFor);
  return &table;
}
