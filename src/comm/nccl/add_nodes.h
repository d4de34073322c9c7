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

/// How many additions follow when each of `nodes`, which come in the order of their shards, has
/// come. CommError for more nodes than one launch adds.
std::vector<unsigned char> additions_after(std::span<const TreeNode> nodes, std::int64_t shards,
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
