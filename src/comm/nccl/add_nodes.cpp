#include "comm/nccl/add_nodes.h"

#include <fmt/core.h>

#include <algorithm>

#include "comm/nccl/kernels/arguments.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

constexpr std::int64_t kThreads = 256;
/// Blocks of a launch for each multiprocessor: as many as run at once.
constexpr std::int64_t kBlocksEach = 8;

bool by_four(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

}  // namespace

static_assert(gpu::kMaxHeld == 13 && kMaxShards == 4096);

NodesOfRanks nodes_of_ranks(std::span<const ShardRange> ranges, std::int64_t shards,
                            std::int64_t present) {
  if (present < 1 || present > shards)
    throw InternalError(fmt::format("a sum of {} of {} shards", present, shards));
  NodesOfRanks all;
  TreeSum tree(shards, present);
  for (const ShardRange& range : ranges) {
    const std::vector<TreeNode> nodes = nodes_of(range, shards, present);
    all.counts.push_back(static_cast<int>(nodes.size()));
    for (const TreeNode& node : nodes)
      all.additions.push_back(static_cast<unsigned char>(tree.push(node).size()));
  }
  if (all.additions.size() > gpu::kMaxNodes)
    throw CommError(fmt::format(
        "the ranks' {} shards make {} sums to be added on GPUs, and at most {} can be; use fewer "
        "ranks, or a number of ranks that is a power of two",
        shards, all.additions.size(), gpu::kMaxNodes));
  return all;
}

AddNodes::AddNodes(std::shared_ptr<runtime::KernelLoader> kernels)
    : kernels_(std::move(kernels)),
      kernel_(kernels_->kernel({"comm_add_nodes", nccl_kernel_source("add_nodes.cuh"), {}},
                               "add_nodes")) {}

void AddNodes::launch(runtime::StreamHandle stream, std::span<const float* const> nodes,
                      std::span<const unsigned char> additions, std::int64_t words,
                      float* sum) const {
  if (words == 0) return;
  gpu::AddArguments a{};
  std::ranges::copy(nodes, a.nodes);
  std::ranges::copy(additions, a.additions);
  a.count = static_cast<int>(nodes.size());
  a.by_four = by_four(sum) && std::ranges::all_of(nodes, by_four) ? 1 : 0;
  a.words = words;
  a.sum = sum;
  const std::int64_t threads = a.by_four != 0 ? (words + 3) / 4 : words;
  const std::int64_t blocks =
      std::min((threads + kThreads - 1) / kThreads, kBlocksEach * kernels_->multiprocessors());
  kernels_->launch(stream, kernel_,
                   {{static_cast<unsigned>(blocks)}, {static_cast<unsigned>(kThreads)}}, &a,
                   sizeof(a));
}

}  // namespace segfuse::comm
