#pragma once
// The sum of the nodes of all ranks of a machine, in the order of the tree, over memory that each
// rank's device reaches. A launch of each rank makes one sum; none waits for the host.
//
// Ranks write into each other's memory and read their own. What is written is announced by a flag
// beside it, stored with release and loaded with acquire at the scope of the system. Who wrote it
// is on the other side of the same two barriers of its block, so that one thread's flag stands for
// what all threads of the block wrote. Flags count tiles and never go back, so that none is reset.

#include "comm/nccl/kernels/peer_arguments.h"
#include "comm/nccl/kernels/values.cuh"

namespace segfuse::comm::gpu {

#ifdef __CUDACC__
DEVICE unsigned load_flag(const unsigned* at) {
  unsigned value;
  asm volatile("ld.acquire.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
DEVICE void store_flag(unsigned* at, unsigned value) {
  asm volatile("st.release.sys.global.u32 [%0], %1;" ::"l"(at), "r"(value) : "memory");
}
DEVICE unsigned load_over(const unsigned* at) {
  unsigned value;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(value) : "l"(at) : "memory");
  return value;
}
/// Between two looks at a flag.
DEVICE void rest(unsigned looks) {
  if (looks > 256) __nanosleep(100);
}
template <class Words>
DEVICE void store_far(Words* at, const Words& value) {
  *at = value;
}
#endif

/// How often a thread looks at a flag before it asks whether all is over, over the bus.
inline constexpr unsigned kLooks = 256;

DEVICE unsigned* flag_of(char* memory, int kind, int rank) {
  const long long number =
      (static_cast<long long>(kind) * kPeerBlocks + blockIdx.x) * kMaxPeers + rank;
  return reinterpret_cast<unsigned*>(memory + number * kFlagBytes);
}

/// Where `rank`'s words of a tile lie in any rank's memory. `tile`: of the block, of all launches.
DEVICE long long place_of(const PeerArguments& a, int kind, unsigned tile, int rank) {
  const long long number =
      ((static_cast<long long>(kind) * kPeerBlocks + blockIdx.x) * kPeerSlots + tile % kPeerSlots) *
          a.ranks +
      rank;
  return kFlagsBytes + number * a.place_bytes;
}

struct PeerPart {
  long long begin;
  int words;
};

/// What `owner` adds of a tile of the sum.
DEVICE PeerPart part_of(const PeerArguments& a, long long tile, int owner) {
  const long long begin = (a.two_steps != 0 ? tile * a.ranks + owner : tile) * a.part;
  const long long left = a.words - begin;
  return {begin, left <= 0 ? 0 : static_cast<int>(left < a.part ? left : a.part)};
}

/// Announces what this block wrote to the other ranks: `tiles` of them are there.
DEVICE void announce(const PeerArguments& a, int kind, unsigned tiles) {
  __syncthreads();
  for (int peer = static_cast<int>(threadIdx.x); peer < a.ranks;
       peer += static_cast<int>(blockDim.x))
    if (peer != a.rank) store_flag(flag_of(a.memory[peer], kind, a.rank), tiles);
}

/// Waits until so many tiles of all other ranks are there. False: all is over.
DEVICE bool wait_for_peers(const PeerArguments& a, int kind, unsigned tiles) {
  bool there = true;
  for (int peer = static_cast<int>(threadIdx.x); peer < a.ranks;
       peer += static_cast<int>(blockDim.x)) {
    const unsigned* const flag = flag_of(a.memory[a.rank], kind, peer);
    for (unsigned looks = 1; there && peer != a.rank; ++looks) {
      if (static_cast<int>(load_flag(flag) - tiles) >= 0) break;
      there = looks % kLooks != 0 || load_over(a.over) == 0;
      rest(looks);
    }
  }
  return __syncthreads_and(there) != 0;
}

/// So many loads of a thread are under way at once.
inline constexpr int kAtOnce = 4;

template <class Words, bool kFar>
DEVICE void copy_units(float* to, const float* from, int count) {
  const int step = static_cast<int>(blockDim.x);
  const auto* const source = reinterpret_cast<const Words*>(from);
  auto* const target = reinterpret_cast<Words*>(to);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kAtOnce * step) {
    Words held[kAtOnce];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (first + i * step < count) held[i] = source[first + i * step];
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      if (first + i * step >= count) continue;
      if (kFar)
        store_far(target + first + i * step, held[i]);
      else
        target[first + i * step] = held[i];
    }
  }
}

template <bool kFar>
DEVICE void copy_words(const PeerArguments& a, float* to, const float* from, int words) {
  const int fours = a.by_four != 0 ? words / 4 : 0;
  copy_units<FourWords, kFar>(to, from, fours);
  copy_units<float, kFar>(to + 4 * fours, from + 4 * fours, words - 4 * fours);
}

/// Writes each rank's part of this rank's nodes into that rank's memory.
DEVICE void hand_over(const PeerArguments& a, long long tile, unsigned number) {
  const long long place = place_of(a, kHandedOver, number, a.rank);
  for (int next = 1; next < a.ranks; ++next) {
    const int peer = (a.rank + next) % a.ranks;
    const PeerPart part = part_of(a, tile, peer);
    auto* const to = reinterpret_cast<float*>(a.memory[peer] + place);
    for (int k = 0; k < a.counts[a.rank]; ++k)
      copy_words<true>(a, to + static_cast<long long>(k) * a.part, a.nodes[k] + part.begin,
                       part.words);
  }
  announce(a, kHandedOver, number + 1);
}

/// This rank's part of a tile: its place in the sum, and that of other ranks' nodes.
struct PeerSources {
  PeerPart part;
  const char* places;  ///< of rank 0
};

DEVICE const float* source_of(const PeerArguments& a, const PeerSources& sources, int rank, int k) {
  if (rank == a.rank) return a.nodes[k] + sources.part.begin;
  return reinterpret_cast<const float*>(sources.places + rank * a.place_bytes) +
         static_cast<long long>(k) * a.part;
}

/// The sum of kCount nodes where each pair is added, each pair of pairs, and so on.
template <int kCount, class Words>
DEVICE Words balanced_sum(const float* const* from, int at) {
  if constexpr (kCount == 1) {
    return reinterpret_cast<const Words*>(from[0])[at];
  } else {
    const Words left = balanced_sum<kCount / 2, Words>(from, at);
    const Words right = balanced_sum<kCount / 2, Words>(from + kCount / 2, at);
    return sum_of(left, right);
  }
}

/// The sum of any nodes.
template <class Words>
DEVICE Words any_sum(const PeerArguments& a, const PeerSources& sources, int offset, int at) {
  Words held[kMaxHeld];
  int depth = 0;
  int node = 0;
  for (int rank = 0; rank < a.ranks; ++rank)
    for (int k = 0; k < a.counts[rank]; ++k) {
      Words value = reinterpret_cast<const Words*>(source_of(a, sources, rank, k) + offset)[at];
      for (int left = a.additions[node++]; left > 0; --left) value = sum_of(held[--depth], value);
      held[depth++] = value;
    }
  return held[0];
}

/// Adds `count` units of Words, from word `offset` of the part on. kCount: a balanced number of
/// nodes; 0: any.
template <int kCount, class Words>
DEVICE void add_units(const PeerArguments& a, const PeerSources& sources, long long back,
                      int offset, int count) {
  constexpr int kTogether = kCount == 2 ? kAtOnce : 1;
  constexpr int kSources = kCount == 0 ? 1 : kCount;
  const float* from[kSources];
  if constexpr (kCount > 0) {
    int node = 0;
    for (int rank = 0; rank < a.ranks; ++rank)
      for (int k = 0; k < a.counts[rank]; ++k, ++node)
#pragma unroll
        for (int i = 0; i < kSources; ++i)
          if (i == node) from[i] = source_of(a, sources, rank, k) + offset;
  }
  const int step = static_cast<int>(blockDim.x);
  auto* const sum = reinterpret_cast<Words*>(a.sum + sources.part.begin + offset);
  for (int first = static_cast<int>(threadIdx.x); first < count; first += kTogether * step) {
    Words value[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * step;
      if (at >= count) continue;
      if constexpr (kCount > 0)
        value[i] = balanced_sum<kSources, Words>(from, at);
      else
        value[i] = any_sum<Words>(a, sources, offset, at);
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int at = first + i * step;
      if (at >= count) continue;
      sum[at] = value[i];
      for (int next = 1; next < a.ranks && a.two_steps != 0; ++next) {
        const int peer = (a.rank + next) % a.ranks;
        auto* const to = reinterpret_cast<float*>(a.memory[peer] + back) + offset;
        store_far(reinterpret_cast<Words*>(to) + at, value[i]);
      }
    }
  }
}

template <int kCount>
DEVICE void add_part(const PeerArguments& a, const PeerSources& sources, long long back) {
  const int words = sources.part.words;
  const int fours = a.by_four != 0 ? words / 4 : 0;
  add_units<kCount, FourWords>(a, sources, back, 0, fours);
  add_units<kCount, float>(a, sources, back, 4 * fours, words - 4 * fours);
}

/// Adds this rank's part and, in two steps, gives the sum back to all. False: all is over.
DEVICE bool add(const PeerArguments& a, long long tile, unsigned number) {
  if (!wait_for_peers(a, kHandedOver, number + 1)) return false;
  const PeerSources sources{part_of(a, tile, a.rank),
                            a.memory[a.rank] + place_of(a, kHandedOver, number, 0)};
  const long long back = place_of(a, kGivenBack, number, a.rank);
  switch (a.balanced) {
    case 2: add_part<2>(a, sources, back); break;
    case 4: add_part<4>(a, sources, back); break;
    default: add_part<0>(a, sources, back);
  }
  if (a.two_steps != 0) announce(a, kGivenBack, number + 1);
  return true;
}

/// Takes the other ranks' parts of the sum. False: all is over.
DEVICE bool take(const PeerArguments& a, long long tile, unsigned number) {
  if (!wait_for_peers(a, kGivenBack, number + 1)) return false;
  for (int next = 1; next < a.ranks; ++next) {
    const int peer = (a.rank + next) % a.ranks;
    const PeerPart part = part_of(a, tile, peer);
    const auto* const from =
        reinterpret_cast<const float*>(a.memory[a.rank] + place_of(a, kGivenBack, number, peer));
    copy_words<false>(a, a.sum + part.begin, from, part.words);
  }
  return true;
}

KERNEL __launch_bounds__(512, 2) sum_over_peers(const __grid_constant__ PeerArguments a) {
  const long long tile_words = static_cast<long long>(a.part) * (a.two_steps != 0 ? a.ranks : 1);
  const long long tiles = (a.words + tile_words - 1) / tile_words;
  const long long first = blockIdx.x;
  const long long step = gridDim.x;
  unsigned* const count = flag_of(a.memory[a.rank], kCounts, 0);
  unsigned number = *count;
  if (first < tiles) hand_over(a, first, number);
  for (long long tile = first; tile < tiles; tile += step, ++number) {
    if (tile + step < tiles) hand_over(a, tile + step, number + 1);
    if (!add(a, tile, number)) return;
    if (a.two_steps != 0 && tile > first && !take(a, tile - step, number - 1)) return;
    if (a.two_steps != 0 && tile + step >= tiles && !take(a, tile, number)) return;
  }
  __syncthreads();
  if (threadIdx.x == 0) *count = number;
}

}  // namespace segfuse::comm::gpu
