#pragma once
// The kernel over peer memory as the emulator runs it: the blocks of all ranks that have one number
// by turns, each as far as it gets, and threads that are held up now and then.

#include <cstdint>
#include <functional>
#include <vector>

#include "comm/nccl/kernels/peer_arguments.h"

namespace segfuse::test {

/// A launch of a rank.
struct PeerLaunch {
  comm::gpu::PeerArguments arguments;
  int blocks = 1;
};

/// Runs the launches of each rank, which follow one another on its stream. Ranks get their turns in
/// `order`; one that is not in it never comes. Throws where a thread waits for ever.
void run_peers(const std::vector<std::vector<PeerLaunch>>& launches, const std::vector<int>& order,
               std::uint64_t seed);

}  // namespace segfuse::test
