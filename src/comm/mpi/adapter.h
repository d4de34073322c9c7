#pragma once
// The table over an MPI whose types, constants and functions are the members of `Mpi`: those of the
// machine's mpi.h (module/), or those of the standard ABI (abi.cpp). The names are MPI's own.

#include <algorithm>
#include <cstring>
#include <string_view>
#include <type_traits>

#include "comm/mpi/mpi_table.h"

/// X(member of Mpi, function of MPI)
#define SEGFUSE_MPI_FUNCTIONS(X)                  \
  X(abort, MPI_Abort)                             \
  X(comm_dup, MPI_Comm_dup)                       \
  X(comm_free, MPI_Comm_free)                     \
  X(comm_rank, MPI_Comm_rank)                     \
  X(comm_set_errhandler, MPI_Comm_set_errhandler) \
  X(comm_size, MPI_Comm_size)                     \
  X(error_string, MPI_Error_string)               \
  X(finalize, MPI_Finalize)                       \
  X(finalized, MPI_Finalized)                     \
  X(get_count, MPI_Get_count)                     \
  X(get_library_version, MPI_Get_library_version) \
  X(iallgather, MPI_Iallgather)                   \
  X(iallgatherv, MPI_Iallgatherv)                 \
  X(ibarrier, MPI_Ibarrier)                       \
  X(ibcast, MPI_Ibcast)                           \
  X(init_thread, MPI_Init_thread)                 \
  X(initialized, MPI_Initialized)                 \
  X(irecv, MPI_Irecv)                             \
  X(isend, MPI_Isend)                             \
  X(query_thread, MPI_Query_thread)               \
  X(test, MPI_Test)

namespace segfuse::comm {

template <class Mpi>
class MpiAdapter {
 public:
  static constexpr SegfuseMpiTable table(const char* made_for) {
    return {kSegfuseMpiVersion,
            made_for,
            library_version,
            error_text,
            start,
            stop,
            abort,
            place,
            send,
            receive,
            broadcast,
            gather,
            gather_sizes,
            barrier,
            test};
  }

 private:
  using Comm = typename Mpi::Comm;
  using Request = typename Mpi::Request;
  static_assert(sizeof(Request) <= sizeof(SegfuseMpiRequest));
  static_assert(std::is_trivially_copyable_v<Request>);

  static constexpr int kTag = 0;
  // A communicator of our own: nobody else's messages, and errors that come back as codes.
  static inline Comm comm_{};
  static inline bool started_ = false;

  static void copy_text(const char* from, char* text, std::size_t size) {
    const std::string_view all(from);
    const std::size_t kept = std::min(all.size(), size - 1);
    std::memcpy(text, all.data(), kept);
    text[kept] = '\0';
  }

  static void library_version(char* text, std::size_t size) {
    char all[Mpi::kLibraryVersionBytes] = "";
    int length = 0;
    Mpi::get_library_version(all, &length);
    copy_text(all, text, size);
  }

  static void error_text(int code, char* text, std::size_t size) {
    char all[Mpi::kErrorTextBytes] = "";
    int length = 0;
    Mpi::error_string(code, all, &length);
    copy_text(all, text, size);
  }

  static int start(int* state) {
    int over = 0;
    int running = 0;
    int threads = 0;
    int code = Mpi::finalized(&over);
    if (code == 0) code = Mpi::initialized(&running);
    if (code != 0) return code;
    *state = over != 0 ? kSegfuseMpiOver : running != 0 ? kSegfuseMpiRunning : kSegfuseMpiStarted;
    if (over != 0) return 0;
    code = running != 0 ? Mpi::query_thread(&threads)
                        : Mpi::init_thread(nullptr, nullptr, Mpi::kFunneled, &threads);
    if (code != 0) return code;
    started_ = running == 0;
    if (threads < Mpi::kFunneled) {
      *state = kSegfuseMpiThreads;
      return 0;
    }
    if (started_) code = Mpi::comm_set_errhandler(Mpi::world(), Mpi::errors_return());
    if (code == 0) code = Mpi::comm_dup(Mpi::world(), &comm_);
    if (code == 0) code = Mpi::comm_set_errhandler(comm_, Mpi::errors_return());
    return code;
  }

  static int stop() {
    const int code = Mpi::comm_free(&comm_);
    return code != 0 || !started_ ? code : Mpi::finalize();
  }

  static int abort(int exit_code) { return Mpi::abort(Mpi::world(), exit_code); }

  static int place(int* rank, int* size) {
    const int code = Mpi::comm_rank(comm_, rank);
    return code != 0 ? code : Mpi::comm_size(comm_, size);
  }

  /// Begins something and keeps its request.
  template <class Begin>
  static int begin(SegfuseMpiRequest* request, const Begin& call) {
    Request own{};
    const int code = call(&own);
    *request = 0;
    std::memcpy(request, &own, sizeof(own));
    return code;
  }

  static int send(const void* bytes, int size, int to, SegfuseMpiRequest* request) {
    return begin(request, [&](Request* own) {
      return Mpi::isend(bytes, size, Mpi::byte(), to, kTag, comm_, own);
    });
  }

  static int receive(void* bytes, int size, int from, SegfuseMpiRequest* request) {
    return begin(request, [&](Request* own) {
      return Mpi::irecv(bytes, size, Mpi::byte(), from, kTag, comm_, own);
    });
  }

  static int broadcast(void* bytes, int size, int root, SegfuseMpiRequest* request) {
    return begin(request, [&](Request* own) {
      return Mpi::ibcast(bytes, size, Mpi::byte(), root, comm_, own);
    });
  }

  static int gather(const void* mine, int size, void* all, SegfuseMpiRequest* request) {
    return begin(request, [&](Request* own) {
      return Mpi::iallgather(mine, size, Mpi::byte(), all, size, Mpi::byte(), comm_, own);
    });
  }

  static int gather_sizes(const void* mine, int size, void* all, const int* sizes,
                          const int* offsets, SegfuseMpiRequest* request) {
    return begin(request, [&](Request* own) {
      return Mpi::iallgatherv(mine, size, Mpi::byte(), all, sizes, offsets, Mpi::byte(), comm_,
                              own);
    });
  }

  static int barrier(SegfuseMpiRequest* request) {
    return begin(request, [&](Request* own) { return Mpi::ibarrier(comm_, own); });
  }

  static int test(SegfuseMpiRequest* request, int* done, int* received) {
    Request own;
    std::memcpy(&own, request, sizeof(own));
    typename Mpi::Status status{};
    int code = Mpi::test(&own, done, &status);
    std::memcpy(request, &own, sizeof(own));
    if (code == 0 && *done != 0 && received != nullptr)
      code = Mpi::get_count(&status, Mpi::byte(), received);
    return code;
  }
};

}  // namespace segfuse::comm
