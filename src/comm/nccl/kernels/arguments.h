#pragma once
// What the kernel takes, as plain data: read by the host and by the device compiler alike, so no
// header is included here.

namespace segfuse::comm::gpu {

/// Nodes of all ranks that one launch adds, at most.
inline constexpr int kMaxNodes = 256;
/// Sums that wait for another one: as many as a tree over 4096 shards has levels, and one.
inline constexpr int kMaxHeld = 13;

/// sum = the nodes, added in pairs. When a node has come, `additions` of it says how often the last
/// two of what is held become their sum; at the end one is held.
struct AddArguments {
  const float* nodes[kMaxNodes];
  unsigned char additions[kMaxNodes];
  int count;        ///< of nodes
  int by_four;      ///< all addresses are multiples of 16 bytes
  long long words;  ///< of each
  float* sum;       ///< may be one of the nodes
};

}  // namespace segfuse::comm::gpu
