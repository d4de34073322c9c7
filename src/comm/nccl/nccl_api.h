#pragma once
// NCCL's functions, types and constants, as its documentation gives them: no header of NCCL is
// needed to build. Only what is used here.

#include <climits>
#include <cstddef>
#include <string>

namespace segfuse::comm {

/// ncclComm_t: one rank of a communicator.
using NcclComm = struct NcclCommOf*;

/// ncclResult_t
enum class NcclResult : int { kSuccess = 0, kInProgress = 7 };

/// ncclUniqueId: what the ranks of a communicator find each other by.
struct NcclId {
  char bytes[128];
};

/// ncclConfig_t as of NCCL 2.20. Later ones are longer at the end, and each says its size.
struct NcclConfig {
  static constexpr int kUndefined = INT_MIN;
  std::size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 22000;
  int blocking = kUndefined;
  int cga_cluster_size = kUndefined;
  int min_blocks = kUndefined;
  int max_blocks = kUndefined;
  const char* net_name = nullptr;
  int split_share = kUndefined;
};
static_assert(sizeof(NcclConfig) == 48);

inline constexpr int kNcclFloat32 = 7;

using NcclStream = void*;  // cudaStream_t

/// X(member of NcclApi, function of NCCL, its arguments); all return an NcclResult.
#define SEGFUSE_NCCL_FUNCTIONS(X)                                                                \
  X(get_version, ncclGetVersion, (int* version))                                                 \
  X(get_id, ncclGetUniqueId, (NcclId * id))                                                      \
  X(init_rank, ncclCommInitRankConfig,                                                           \
    (NcclComm * comm, int ranks, NcclId id, int rank, NcclConfig* config))                       \
  X(finalize, ncclCommFinalize, (NcclComm comm))                                                 \
  X(destroy, ncclCommDestroy, (NcclComm comm))                                                   \
  X(abort, ncclCommAbort, (NcclComm comm))                                                       \
  X(get_async_error, ncclCommGetAsyncError, (NcclComm comm, NcclResult * result))                \
  X(group_start, ncclGroupStart, ())                                                             \
  X(group_end, ncclGroupEnd, ())                                                                 \
  X(send, ncclSend,                                                                              \
    (const void* from, std::size_t count, int type, int peer, NcclComm comm, NcclStream stream)) \
  X(receive, ncclRecv,                                                                           \
    (void* to, std::size_t count, int type, int peer, NcclComm comm, NcclStream stream))         \
  X(all_gather, ncclAllGather,                                                                   \
    (const void* mine, void* all, std::size_t count, int type, NcclComm comm, NcclStream stream))

/// A library of NCCL that is open.
struct NcclApi {
#define X(member, function, arguments) NcclResult(*member) arguments = nullptr;
  SEGFUSE_NCCL_FUNCTIONS(X)
#undef X
  const char* (*error_text)(NcclResult result) = nullptr;
  /// More about the last error; null where the library has no such function.
  const char* (*last_error)(NcclComm comm) = nullptr;

  std::string where;    ///< the file
  std::string version;  ///< "2.28.9"
};

}  // namespace segfuse::comm
