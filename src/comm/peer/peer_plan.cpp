#include "comm/peer/peer_plan.h"

#include <fmt/core.h>

#include <algorithm>
#include <utility>

#include "comm/nccl/add_nodes.h"
#include "segfuse/error.h"

namespace segfuse::comm {
namespace {

/// Bytes that a block copies at once: one unit of each thread.
constexpr std::int64_t kRound = 8 << 10;
/// Bytes of a block, where there are many.
constexpr std::int64_t kBytesOfMany = 256 << 10;

bool by_four(const void* address) { return reinterpret_cast<std::uintptr_t>(address) % 16 == 0; }

std::int64_t divided(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

/// The number of nodes, where each pair is added, then each pair of pairs; 0 where the kernel has
/// no short way for that.
int balanced(std::span<const unsigned char> additions) {
  constexpr unsigned char kTwo[] = {0, 1};
  constexpr unsigned char kFour[] = {0, 1, 0, 2};
  if (std::ranges::equal(additions, kTwo)) return 2;
  return std::ranges::equal(additions, kFour) ? 4 : 0;
}

}  // namespace

static_assert(gpu::kMaxOwnNodes == 24 && kMaxShards == 4096);

std::size_t PeerOptions::memory_bytes(std::size_t ranks) const {
  return static_cast<std::size_t>(gpu::kFlagsBytes) +
         2 * static_cast<std::size_t>(gpu::kPeerBlocks * gpu::kPeerSlots) * ranks *
             static_cast<std::size_t>(place_bytes(ranks));
}

PeerPlan make_peer_plan(std::span<const ShardRange> ranges, std::int64_t shards,
                        std::int64_t present, std::int64_t words, const PeerOptions& options) {
  PeerPlan plan;
  plan.words = words;
  NodesOfRanks all = nodes_of_ranks(ranges, shards, present);
  plan.nodes = std::move(all.counts);
  plan.additions = std::move(all.additions);
  const auto ranks = std::ssize(ranges);
  const int most = std::ranges::max(plan.nodes);
  const std::int64_t bytes = words * static_cast<std::int64_t>(sizeof(float));
  plan.two_steps = most * (ranks - 1) * bytes > options.one_step_bytes;
  const std::int64_t few = std::min<std::int64_t>(divided(bytes, kRound), options.blocks);
  const std::int64_t many = std::min<std::int64_t>(bytes / kBytesOfMany, options.most_blocks);
  plan.blocks =
      static_cast<int>(std::clamp<std::int64_t>(std::max(few, many), 1, gpu::kPeerBlocks));
  // As few tiles as have room, all of one size.
  const std::int64_t parts = plan.blocks * (plan.two_steps ? ranks : 1);
  const std::int64_t most_words = options.place_bytes(ranges.size()) / most / 16 * 4;
  if (most_words < 4)
    throw InternalError(
        fmt::format("no room for {} nodes in {} bytes", most, options.place_bytes(ranges.size())));
  const std::int64_t rounds = std::max<std::int64_t>(1, divided(words, parts * most_words));
  plan.part = std::max<std::int64_t>(4, divided(divided(words, parts * rounds), 4) * 4);
  return plan;
}

gpu::PeerArguments peer_arguments(const PeerPlan& plan, const PeerOptions& options, int rank,
                                  std::span<std::byte* const> memory,
                                  std::span<const float* const> nodes, float* sum,
                                  const unsigned* over) {
  gpu::PeerArguments a{};
  std::ranges::copy(nodes, a.nodes);
  for (std::size_t i = 0; i < plan.nodes.size(); ++i) {
    a.memory[i] = reinterpret_cast<char*>(memory[i]);
    a.counts[i] = static_cast<unsigned char>(plan.nodes[i]);
  }
  std::ranges::copy(plan.additions, a.additions);
  a.rank = rank;
  a.ranks = static_cast<int>(plan.nodes.size());
  a.balanced = balanced(plan.additions);
  a.two_steps = plan.two_steps ? 1 : 0;
  a.by_four = by_four(sum) && std::ranges::all_of(nodes, by_four) ? 1 : 0;
  a.part = static_cast<int>(plan.part);
  a.place_bytes = options.place_bytes(plan.nodes.size());
  a.words = plan.words;
  a.sum = sum;
  a.over = over;
  return a;
}

}  // namespace segfuse::comm
