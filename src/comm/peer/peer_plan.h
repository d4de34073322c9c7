#pragma once
// How the kernel over peer memory makes a sum: numbers that follow from the sizes alone.

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "comm/nccl/kernels/peer_arguments.h"
#include "comm/tree.h"

namespace segfuse::comm {

/// The same on all ranks.
struct PeerOptions {
  /// Blocks of the kernel, at most; each takes half a multiprocessor. Long sums have a block for
  /// each 256 KiB, `most_blocks` at most.
  int blocks = 32;
  int most_blocks = gpu::kPeerBlocks;
  /// Where a rank would write so many bytes to others, each adds all words, in one step.
  std::int64_t one_step_bytes = std::int64_t{1} << 20;
  /// Room for a tile of a block, all ranks together; the memory of a rank has 512 times as much.
  std::int64_t tile_bytes = std::int64_t{256} << 10;

  /// Of one rank's part of it.
  std::int64_t place_bytes(std::size_t ranks) const {
    return tile_bytes / static_cast<std::int64_t>(ranks) / 16 * 16;
  }
  /// Memory of a rank.
  std::size_t memory_bytes(std::size_t ranks) const;
};

/// How one sum is made, the same on all ranks.
struct PeerPlan {
  std::int64_t words = 0;
  bool two_steps = false;
  std::int64_t part = 0;  ///< words of a rank's part of a tile, or of a tile in one step
  int blocks = 0;
  std::vector<int> nodes;                ///< of each rank
  std::vector<unsigned char> additions;  ///< after each node, in the order of ranks (add_nodes.h)
};

/// `ranges`: the shards of each rank.
PeerPlan make_peer_plan(std::span<const ShardRange> ranges, std::int64_t shards,
                        std::int64_t present, std::int64_t words, const PeerOptions& options);

/// What a rank's kernel takes. `memory`: of each rank, as this one reaches it. `sum` may be one of
/// the nodes.
gpu::PeerArguments peer_arguments(const PeerPlan& plan, const PeerOptions& options, int rank,
                                  std::span<std::byte* const> memory,
                                  std::span<const float* const> nodes, float* sum,
                                  const unsigned* over);

}  // namespace segfuse::comm
