#pragma once
// The addition of nodes on a device, in the order of the tree.

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "comm/tree.h"
#include "runtime/kernels.h"

namespace segfuse::comm {

/// A file by its path in comm/nccl/kernels, after the files that it includes: text without
/// includes.
std::string nccl_kernel_source(std::string_view name);

/// What all ranks hand over: how many nodes each has, and the additions after each of them, in the
/// order of ranks.
struct NodesOfRanks {
  std::vector<int> counts;
  std::vector<unsigned char> additions;
};

/// `ranges`: the shards of each rank. CommError for more nodes than one launch adds.
NodesOfRanks nodes_of_ranks(std::span<const ShardRange> ranges, std::int64_t shards,
                            std::int64_t present);

/// The kernel, ready to be launched.
class AddNodes {
 public:
  explicit AddNodes(std::shared_ptr<runtime::KernelLoader> kernels);

  /// Enqueues sum[i] = nodes[0][i] + ... of `words` words, added as `additions` says. `sum` may be
  /// one of the nodes.
  void launch(runtime::StreamHandle stream, std::span<const float* const> nodes,
              std::span<const unsigned char> additions, std::int64_t words, float* sum) const;

 private:
  std::shared_ptr<runtime::KernelLoader> kernels_;
  runtime::GpuKernel kernel_;
};

}  // namespace segfuse::comm
