#pragma once
// What the kernel of sums over peer memory takes, and how that memory is laid out. Read by the host
// and by the device compiler alike, so no header is included here but the kernels' own.

#include "comm/nccl/kernels/arguments.h"

namespace segfuse::comm::gpu {

/// Ranks of one machine, at most.
inline constexpr int kMaxPeers = 16;
/// Nodes of one rank, at most: a range of 4096 shards has two of each level.
inline constexpr int kMaxOwnNodes = 24;
/// Blocks of a launch, at most. Each talks to the block of its number on the other ranks.
inline constexpr int kPeerBlocks = 64;
/// Tiles of a block that may be under way. A rank hands over tile n + 1 before it adds tile n. So
/// when it hands over tile n, it has added n - 2, and for that each other rank had handed over
/// n - 2, before which it had added n - 4: the place of n - 4 is free.
inline constexpr int kPeerSlots = 4;

/// Memory of a rank that all of them reach: flags, then the places of tiles.
///
/// flags   [kind][block][rank]: how many tiles of that rank have come; written by that rank.
/// counts  [block]: how many tiles the block has done in all launches; read by its own rank only.
/// places  [kind][block][tile % kPeerSlots][rank]: what that rank wrote, `place_bytes` each.
enum PeerKind { kHandedOver = 0, kGivenBack = 1, kCounts = 2 };
inline constexpr int kFlagBytes = 64;
inline constexpr long long kFlagsBytes = 3ll * kPeerBlocks * kMaxPeers * kFlagBytes;

/// The words are cut into tiles, and a tile into one part a rank, which adds it for all; in one
/// step a tile is a part that all ranks add.
struct PeerArguments {
  const float* nodes[kMaxOwnNodes];    ///< of this rank
  char* memory[kMaxPeers];             ///< of each rank
  unsigned char additions[kMaxNodes];  ///< as in AddArguments, in the order of ranks
  unsigned char counts[kMaxPeers];     ///< nodes of each rank
  int rank;
  int ranks;
  int balanced;  ///< the number of nodes, where each pair of them is added, each pair of pairs...
  int two_steps;
  int by_four;  ///< addresses of nodes and sum are multiples of 16 bytes
  int part;     ///< words, a multiple of 4
  long long place_bytes;
  long long words;
  float* sum;            ///< may be one of the nodes
  const unsigned* over;  ///< in the host's memory; not 0: the ranks' work is over, do not wait
};

}  // namespace segfuse::comm::gpu
