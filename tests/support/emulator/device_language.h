#pragma once
// CUDA C++ as far as the kernels use it, for the host compiler.

#include <setjmp.h>
#include <ucontext.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

namespace segfuse::testing {

struct Index3 {
  unsigned x = 0, y = 0, z = 0;
};

/// Runs a block's threads as fibers, each until it waits for others; blocks one after the other, or
/// all of a cluster or of a grid by turns.
class BlockRunner {
 public:
  void run(Index3 grid, Index3 block, std::size_t shared_bytes, std::size_t at_once,
           const std::function<void()>& body);

  // What the running thread sees.
  Index3 thread, block, block_size, grid_size;
  double* dynamic_shared() { return running_->dynamic_shared.data(); }

  /// Waits for all threads of the block that have not returned; the and of all values.
  bool wait_block(bool value);
  /// Gives `bits` to the warp and waits for its living lanes; what lane `from` gave is then
  /// lane(from).
  const std::uint64_t* exchange(std::uint64_t bits);
  /// Lets others go on, for threads that wait for another block.
  void pause();
  /// Waits for all threads of the blocks at hand that have not returned.
  void wait_cluster();
  /// The place in another block's dynamic shared memory.
  void* elsewhere(const void* mine, unsigned of_block) {
    const auto at = static_cast<const char*>(mine) -
                    reinterpret_cast<const char*>(running_->dynamic_shared.data());
    return reinterpret_cast<char*>(blocks_[of_block]->dynamic_shared.data()) + at;
  }
  unsigned lane() const { return current_ % 32; }
  unsigned lanes_alive() const { return running_->alive_of_warp[current_ / 32]; }

 private:
  enum class State { kReady, kAtBlock, kAtWarp, kAtCluster, kDone };
  /// Where a fiber begins, and where it was left.
  struct Context {
    ucontext_t made;
    jmp_buf jump;
  };
  struct Fiber {
    Context context;
    std::unique_ptr<char[]> stack;
    State state = State::kReady;
    unsigned exchanges = 0;
  };
  struct Block {
    Index3 index;
    std::vector<Fiber> fibers;
    std::vector<std::uint64_t> given[2];
    std::vector<unsigned> alive_of_warp;
    std::vector<double> dynamic_shared;
    bool all = true;
    bool all_result = true;
  };
  static void enter();
  [[gnu::noinline]] static void change(Context& from, Context& to);
  [[gnu::noinline]] static void begin(Context& from, Context& to);
  void prepare(Fiber& fiber);
  void yield();
  void start(Block& block, Index3 index, std::size_t shared_bytes);
  bool advance(Block& block);
  bool advance_warp(Block& block, unsigned warp);
  void release_block(Block& block);
  bool release_cluster(std::size_t count);
  void run_blocks(std::size_t count);

  std::vector<std::unique_ptr<Block>> blocks_;
  std::function<void()> body_;
  Context scheduler_;
  Block* running_ = nullptr;
  unsigned current_ = 0;
  unsigned threads_ = 0;
  bool paused_ = false;
  bool progress_ = false;
};

BlockRunner& runner();

}  // namespace segfuse::testing

#define __device__
#define __global__
#define __forceinline__ inline
#define __shared__ static
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(n) __attribute__((aligned(n)))
#define threadIdx (segfuse::testing::runner().thread)
#define blockIdx (segfuse::testing::runner().block)
#define blockDim (segfuse::testing::runner().block_size)
#define gridDim (segfuse::testing::runner().grid_size)
#define DYNAMIC_SHARED(type, name) \
  type* name = reinterpret_cast<type*>(segfuse::testing::runner().dynamic_shared())

namespace segfuse::semicrf::gpu {

struct double2 {
  double x, y;
};

inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }
inline long long min(long long a, long long b) { return a < b ? a : b; }
inline long long max(long long a, long long b) { return a > b ? a : b; }
inline unsigned min(unsigned a, unsigned b) { return a < b ? a : b; }
using std::exp;
using std::exp2;
using std::fabs;
using std::floor;
using std::fma;
using std::fmax;
using std::fmin;
using std::log;
using std::log2;
using std::rint;

inline double __longlong_as_double(long long bits) { return std::bit_cast<double>(bits); }
inline float __uint_as_float(unsigned bits) { return std::bit_cast<float>(bits); }
inline unsigned __float_as_uint(float x) { return std::bit_cast<unsigned>(x); }
inline int __double2hiint(double x) {
  return static_cast<int>(std::bit_cast<std::int64_t>(x) >> 32);
}
inline int __double2loint(double x) { return static_cast<int>(std::bit_cast<std::int64_t>(x)); }
inline double __hiloint2double(int high, int low) {
  return std::bit_cast<double>(static_cast<std::uint64_t>(static_cast<std::uint32_t>(high)) << 32 |
                               static_cast<std::uint32_t>(low));
}

inline void __syncthreads() { testing::runner().wait_block(true); }
inline bool __syncthreads_and(bool value) { return testing::runner().wait_block(value); }
inline double __shfl_xor_sync(unsigned, double value, int mask) {
  const std::uint64_t* given = testing::runner().exchange(std::bit_cast<std::uint64_t>(value));
  return std::bit_cast<double>(given[testing::runner().lane() ^ static_cast<unsigned>(mask)]);
}
inline double __shfl_down_sync(unsigned, double value, int by) {
  const std::uint64_t* given = testing::runner().exchange(std::bit_cast<std::uint64_t>(value));
  const unsigned from = testing::runner().lane() + static_cast<unsigned>(by);
  return from < 32 ? std::bit_cast<double>(given[from]) : value;
}
inline int __shfl_down_sync(unsigned, int value, int by) {
  const std::uint64_t* given = testing::runner().exchange(static_cast<std::uint32_t>(value));
  const unsigned from = testing::runner().lane() + static_cast<unsigned>(by);
  return from < 32 ? static_cast<int>(given[from]) : value;
}
inline int __shfl_xor_sync(unsigned, int value, int mask) {
  const std::uint64_t* given = testing::runner().exchange(static_cast<std::uint32_t>(value));
  return static_cast<int>(given[testing::runner().lane() ^ static_cast<unsigned>(mask)]);
}
inline int __shfl_sync(unsigned, int value, int lane) {
  const std::uint64_t* given = testing::runner().exchange(static_cast<std::uint32_t>(value));
  return static_cast<int>(given[lane]);
}
inline unsigned __ballot_sync(unsigned, bool value) {
  const std::uint64_t* given = testing::runner().exchange(value ? 1 : 0);
  unsigned found = 0;
  for (unsigned lane = 0; lane < testing::runner().lanes_alive(); ++lane)
    found |= static_cast<unsigned>(given[lane]) << lane;
  return found;
}
inline int __ffs(unsigned bits) { return bits == 0 ? 0 : std::countr_zero(bits) + 1; }
inline bool __any_sync(unsigned, bool value) {
  const std::uint64_t* given = testing::runner().exchange(value ? 1 : 0);
  for (unsigned lane = 0; lane < testing::runner().lanes_alive(); ++lane)
    if (given[lane] != 0) return true;
  return false;
}
inline int __reduce_max_sync(unsigned, int value) {
  const std::uint64_t* given = testing::runner().exchange(static_cast<std::uint32_t>(value));
  int most = value;
  for (unsigned lane = 0; lane < testing::runner().lanes_alive(); ++lane)
    most = max(most, static_cast<int>(given[lane]));
  return most;
}

inline void atomicMin(unsigned long long* at, unsigned long long value) {
  if (value < *at) *at = value;
}
inline void atomicMin(int* at, int value) {
  if (value < *at) *at = value;
}
inline void atomicMax(int* at, int value) {
  if (value > *at) *at = value;
}
inline void atomicAdd(double* at, double value) { *at += value; }
inline void atomicAdd(unsigned* at, unsigned value) { *at += value; }
inline void __threadfence() {}
inline void __nanosleep(unsigned) { testing::runner().pause(); }
inline void atomicAdd(int* at, int value) { *at += value; }
inline int atomicExch(int* at, int value) { return std::exchange(*at, value); }
inline void __syncwarp() { testing::runner().exchange(0); }
inline void atomicOr(int* at, int value) { *at |= value; }

}  // namespace segfuse::semicrf::gpu
