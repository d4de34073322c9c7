#pragma once
// Does fork() here copy pinned memory, so that this process and its devices go on seeing the same
// bytes? Kernels from 5.12 on do, but what says so differs (versions are patched, sandboxes have
// their own kernels, libibverbs asks a protocol that may be missing), so it is tried.

#include <string>

namespace segfuse::comm {

/// Unknown counts as no wherever something depends on it.
enum class CopyOnFork { kYes, kNo, kUnknown };

struct CopyOnForkProof {
  CopyOnFork answer = CopyOnFork::kUnknown;
  std::string reason;  ///< a sentence: what was seen, or why nothing could be
};

/// Pins a page with io_uring, forks, writes, and compares what the kernel sees through the pin.
/// Takes about a millisecond in a small process, and what a fork() costs in a large one.
CopyOnForkProof probe_copy_on_fork();

/// The same, tried at the first call and remembered. ForkedChildError in a forked child.
const CopyOnForkProof& copy_on_fork();

}  // namespace segfuse::comm
