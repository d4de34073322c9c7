#pragma once
// What tests tell the fake of NCCL (fake_nccl.cpp), which is opened at run time like the real one.
// Its ranks are threads of this process; the memory of their devices is host memory.

#include <cstdint>
#include <functional>
#include <string>

namespace segfuse::test {

/// How a call fails: with an error at once; with one that is heard of later, by
/// ncclCommGetAsyncError; or by staying "in progress" forever.
enum class FakeFault { kAtOnce, kLater, kNever };

/// Puts work on a stream of the device.
using FakeEnqueue = std::function<void(void* stream, std::function<void()> work)>;

/// Settings last until the next reset(). Any thread.
struct FakeNccl {
  /// As freshly loaded. What is alive stays alive.
  void (*reset)();
  void (*set_version)(int version);
  /// What comes behind the calls of a group. Given: as on a GPU, the group's work is put on the
  /// stream when NCCL has been asked `asked` times how far it is, and not before. None: the work is
  /// done by whoever asks, after as many times at least, and not on a stream.
  void (*set_stream)(FakeEnqueue enqueue, int asked);
  /// The calling thread is this rank. Its calls are counted from now on, but for those that ask how
  /// far NCCL is and ncclCommAbort.
  void (*begin_rank)(int rank);
  /// The k-th call of that rank fails (1: the first one; 0: none).
  void (*fail)(int rank, std::uint64_t k, FakeFault how);
  std::uint64_t (*calls)(int rank);
  /// "ncclSend": the k-th call of that rank.
  std::string (*call)(int rank, std::uint64_t k);
  /// Called, by the rank, when a call stays "in progress" forever.
  void (*on_stuck)(std::function<void()> notify);
  /// Communicators that were neither destroyed nor aborted.
  int (*alive)();
  /// What was done that NCCL does not allow; empty: nothing. The first one.
  std::string (*misuse)();
  /// Whether the calling thread is inside a group.
  bool (*in_group)();
};

/// The fake's only symbol that NCCL does not have: fake_nccl().
using FakeNcclEntry = const FakeNccl* (*)();

}  // namespace segfuse::test
