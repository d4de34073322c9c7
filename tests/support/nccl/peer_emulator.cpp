#include "support/nccl/peer_emulator.h"

#include <algorithm>

#include "base/rng.h"
#include "support/emulator/device_language.h"

namespace segfuse::comm::gpu {

using segfuse::semicrf::gpu::__float_as_uint;
using segfuse::semicrf::gpu::__syncthreads;
using segfuse::semicrf::gpu::__uint_as_float;

namespace {

constexpr unsigned kThreads = 64;

struct Emulation {
  std::vector<unsigned> blocks;  ///< of the launch that a thread is in, by rank's turn and thread
  std::uint64_t state = 0;
  bool held_up = false;
};
Emulation emulation;

std::size_t own_place() {
  return testing::runner().block.x * kThreads + testing::runner().thread.x;
}

/// Lets others go on at some of the places where that could matter.
void hold_up() {
  emulation.state = emulation.state * 6364136223846793005U + 1442695040888963407U;
  // Where all are held up again and again, the emulator takes it for the end.
  emulation.held_up = !emulation.held_up && (emulation.state >> 40) % 3 == 0;
  if (emulation.held_up) testing::runner().pause();
}

struct Number {
  unsigned x = 0;
};
Number block_number() { return {testing::runner().block.y}; }
Number grid_blocks() { return {emulation.blocks[own_place()]}; }

/// What follows a wait comes late.
bool __syncthreads_and(bool value) {
  const bool all = testing::runner().wait_block(value);
  hold_up();
  return all;
}
[[maybe_unused]] unsigned load_flag(const unsigned* at) { return *at; }
[[maybe_unused]] void store_flag(unsigned* at, unsigned value) {
  *at = value;
  hold_up();
}
[[maybe_unused]] unsigned load_over(const unsigned* at) { return *at; }
[[maybe_unused]] void rest(unsigned looks) {
  if (looks % 256 == 0) testing::runner().pause();
}
template <class Words>
void store_far(Words* at, const Words& value) {
  hold_up();
  *at = value;
}

}  // namespace
}  // namespace segfuse::comm::gpu

#define DEVICE [[maybe_unused]] static inline
#define KERNEL static void
#undef blockIdx
#undef gridDim
#define blockIdx block_number()
#define gridDim grid_blocks()
#include "comm/nccl/kernels/sum_over_peers.cuh"

namespace segfuse::test {

void run_peers(const std::vector<std::vector<PeerLaunch>>& launches, const std::vector<int>& order,
               std::uint64_t seed) {
  namespace gpu = comm::gpu;
  const auto ranks = static_cast<unsigned>(order.size());
  int blocks = 1;
  for (const auto& of_rank : launches)
    for (const PeerLaunch& launch : of_rank) blocks = std::max(blocks, launch.blocks);
  gpu::emulation = {std::vector<unsigned>(std::size_t{ranks} * gpu::kThreads), seed, false};
  auto& runner = testing::runner();
  runner.run({ranks, static_cast<unsigned>(blocks), 1}, {gpu::kThreads, 1, 1}, 0, ranks, [&] {
    const auto rank = static_cast<std::size_t>(order[runner.block.x]);
    for (const PeerLaunch& launch : launches[rank]) {
      if (static_cast<int>(runner.block.y) >= launch.blocks) continue;
      gpu::emulation.blocks[gpu::own_place()] = static_cast<unsigned>(launch.blocks);
      gpu::sum_over_peers(launch.arguments);
      gpu::__syncthreads();  // the next launch begins when all threads have ended
    }
  });
}

}  // namespace segfuse::test
