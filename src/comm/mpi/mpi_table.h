#pragma once
// What segfuse calls of an MPI: a table of plain C functions, so that all else is the same code
// whether the table comes from libsegfuse_mpi (built with the machine's mpi.h) or from a library
// with the standard ABI. adapter.h fills it for both.

#include <cstddef>
#include <cstdint>

extern "C" {

/// A message or a collective that is under way; 0 bytes of meaning to us.
using SegfuseMpiRequest = std::uintptr_t;

enum SegfuseMpiState {
  kSegfuseMpiStarted = 0,  ///< by us: stop() ends it
  kSegfuseMpiRunning = 1,  ///< somebody else's: stop() leaves it running
  kSegfuseMpiOver = 2,     ///< it was ended already and starts no second time
  kSegfuseMpiThreads = 3   ///< its threads are not what we requested
};

/// Version 1. Numbers of bytes are at most INT_MAX. All but library_version() and error_text()
/// return MPI's error code, 0 for success, and are called from the one thread that called start().
/// Collectives and messages return at once; test() looks after them.
struct SegfuseMpiTable {
  std::uint32_t version;
  /// Whose launcher its ranks come from: "Open MPI", "MPICH"; "" where that is not known.
  const char* made_for;
  /// Both write a text that ends with a zero, cut to `size` bytes.
  void (*library_version)(char* text, std::size_t size);
  void (*error_text)(int code, char* text, std::size_t size);
  int (*start)(int* state);
  int (*stop)();
  int (*abort)(int exit_code);
  int (*place)(int* rank, int* size);
  int (*send)(const void* bytes, int size, int to, SegfuseMpiRequest* request);
  int (*receive)(void* bytes, int size, int from, SegfuseMpiRequest* request);
  int (*broadcast)(void* bytes, int size, int root, SegfuseMpiRequest* request);
  /// `size` bytes of each rank, by rank.
  int (*gather)(const void* mine, int size, void* all, SegfuseMpiRequest* request);
  /// sizes[r] bytes of rank r to all + offsets[r]; both arrays live until it is done.
  int (*gather_sizes)(const void* mine, int size, void* all, const int* sizes, const int* offsets,
                      SegfuseMpiRequest* request);
  int (*barrier)(SegfuseMpiRequest* request);
  /// `done` becomes 0 or 1. Where `received` is given, the request is a receive: how many bytes
  /// came.
  int (*test)(SegfuseMpiRequest* request, int* done, int* received);
};

inline constexpr std::uint32_t kSegfuseMpiVersion = 1;

/// The only symbol of libsegfuse_mpi: segfuse_mpi().
using SegfuseMpiEntry = const SegfuseMpiTable* (*)();
}
