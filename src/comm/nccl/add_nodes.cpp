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

std::vector<unsigned char> additions_after(std::span<const TreeNode> nodes, std::int64_t shards,
                                           std::int64_t present) {
  if (nodes.size() > gpu::kMaxNodes)
    throw CommError(fmt::format(
        "the ranks' {} shards make {} sums to be added on GPUs, and at most {} can be; use fewer "
        "ranks, or a number of ranks that is a power of two",
        shards, nodes.size(), gpu::kMaxNodes));
  TreeSum tree(shards, present);
  std::vector<unsigned char> additions;
  for (const TreeNode& node : nodes)
    additions.push_back(static_cast<unsigned char>(tree.push(node).size()));
  return additions;
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
