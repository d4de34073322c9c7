#include "comm/mpi/abi.h"

#include <fmt/core.h>

#include "base/os/shared_library.h"
#include "comm/mpi/adapter.h"

namespace segfuse::comm {
namespace {

/// The ABI's types: handles are pointers to nothing that we know, and their constants small
/// numbers.
namespace abi {

struct Comm_;
struct Datatype_;
struct Errhandler_;
struct Request_;
using MPI_Comm = Comm_*;
using MPI_Datatype = Datatype_*;
using MPI_Errhandler = Errhandler_*;
using MPI_Request = Request_*;

struct MPI_Status {
  int source;
  int tag;
  int error;
  int internal[5];
};
static_assert(sizeof(MPI_Status) == 32);

using MPI_Abi_get_version = int(int* version, int* subversion);
using MPI_Abort = int(MPI_Comm comm, int code);
using MPI_Comm_dup = int(MPI_Comm comm, MPI_Comm* made);
using MPI_Comm_free = int(MPI_Comm* comm);
using MPI_Comm_rank = int(MPI_Comm comm, int* rank);
using MPI_Comm_set_errhandler = int(MPI_Comm comm, MPI_Errhandler handler);
using MPI_Comm_size = int(MPI_Comm comm, int* size);
using MPI_Error_string = int(int code, char* text, int* length);
using MPI_Finalize = int();
using MPI_Finalized = int(int* flag);
using MPI_Get_count = int(const MPI_Status* status, MPI_Datatype type, int* count);
using MPI_Get_library_version = int(char* text, int* length);
using MPI_Iallgather = int(const void* mine, int count, MPI_Datatype type, void* all,
                           int count_of_each, MPI_Datatype type_of_all, MPI_Comm comm,
                           MPI_Request* request);
using MPI_Iallgatherv = int(const void* mine, int count, MPI_Datatype type, void* all,
                            const int* counts, const int* offsets, MPI_Datatype type_of_all,
                            MPI_Comm comm, MPI_Request* request);
using MPI_Ibarrier = int(MPI_Comm comm, MPI_Request* request);
using MPI_Ibcast = int(void* bytes, int count, MPI_Datatype type, int root, MPI_Comm comm,
                       MPI_Request* request);
using MPI_Init_thread = int(int* argc, char*** argv, int wanted, int* provided);
using MPI_Initialized = int(int* flag);
using MPI_Irecv = int(void* bytes, int count, MPI_Datatype type, int source, int tag, MPI_Comm comm,
                      MPI_Request* request);
using MPI_Isend = int(const void* bytes, int count, MPI_Datatype type, int target, int tag,
                      MPI_Comm comm, MPI_Request* request);
using MPI_Query_thread = int(int* provided);
using MPI_Test = int(MPI_Request* request, int* flag, MPI_Status* status);

}  // namespace abi

template <class Handle>
Handle handle(std::uintptr_t constant) {
  return reinterpret_cast<Handle>(constant);
}

struct AbiMpi {
  using Comm = abi::MPI_Comm;
  using Request = abi::MPI_Request;
  using Status = abi::MPI_Status;
  static constexpr int kFunneled = 1024;
  static constexpr int kErrorTextBytes = 512;
  static constexpr int kLibraryVersionBytes = 8192;
  static Comm world() { return handle<Comm>(0x101); }
  static abi::MPI_Datatype byte() { return handle<abi::MPI_Datatype>(0x247); }
  static abi::MPI_Errhandler errors_return() { return handle<abi::MPI_Errhandler>(0x143); }
#define X(member, function) static inline abi::function* member = nullptr;
  SEGFUSE_MPI_FUNCTIONS(X)
#undef X
};

constexpr int kAbiVersion = 1;

}  // namespace

const SegfuseMpiTable* open_mpi_abi(const std::string& library, std::string& reason) {
  static const SegfuseMpiTable table = MpiAdapter<AbiMpi>::table("");
  static bool opened = false;
  if (opened) return &table;
  const SharedLibrary file = SharedLibrary::open_first({library});
  if (!file) {
    reason = file.error();
    return nullptr;
  }
  try {
    abi::MPI_Abi_get_version* get_version = nullptr;
    file.load("MPI_Abi_get_version", get_version);
    int version = 0;
    int subversion = 0;
    if (get_version(&version, &subversion) != 0 || version != kAbiVersion) {
      reason = fmt::format("{} has version {}.{} of MPI's ABI; expected {}", library, version,
                           subversion, kAbiVersion);
      return nullptr;
    }
#define X(member, function) file.load(#function, AbiMpi::member);
    SEGFUSE_MPI_FUNCTIONS(X)
#undef X
  } catch (const DeviceError& error) {
    reason = error.what();
    return nullptr;
  }
  opened = true;
  return &table;
}

}  // namespace segfuse::comm
