#pragma once
// CUDA C++ as far as printed kernels use it, for the host compiler; stands before the text of
// printed_kernels.cpp and includes nothing of the project, so that it compiles in no time.

#include <cmath>
#include <cstdint>
#include <cstring>

namespace printed {

struct Index3 {
  unsigned x, y, z;
};
/// What the machine that runs the threads does for them.
struct Hooks {
  const Index3* thread;
  const Index3* block;
  const Index3* grid;
  void* (*shared)();
  void (*wait_block)();
  unsigned (*lane)();
  /// Gives bits to the warp and gets those of all lanes.
  const std::uint64_t* (*exchange)(std::uint64_t bits);
};

}  // namespace printed

static printed::Hooks hooks;
extern "C" void set_hooks(const printed::Hooks* machine) { hooks = *machine; }

#define __device__
#define __global__
#define __forceinline__ inline
#define __restrict__ __restrict
// Blocks run one after the other.
#define __shared__ static
#define __launch_bounds__(...)
#define threadIdx (*hooks.thread)
#define blockIdx (*hooks.block)
#define gridDim (*hooks.grid)

struct uint2 {
  unsigned x, y;
};
struct alignas(16) uint4 {
  unsigned x, y, z, w;
};

using std::abs;
using std::atan2;
using std::ceil;
using std::cos;
using std::erf;
using std::exp;
using std::exp2;
using std::expm1;
using std::floor;
using std::fma;
using std::fmax;
using std::fmod;
using std::log;
using std::log1p;
using std::nearbyint;
using std::pow;
using std::sin;
using std::sqrt;
using std::tanh;
template <class T>
static inline T min(T a, T b) {
  return b < a ? b : a;
}
template <class T>
static inline T max(T a, T b) {
  return a < b ? b : a;
}

template <class To, class From>
static inline To same_bits(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  std::memcpy(&to, &from, sizeof(to));
  return to;
}
static inline float __uint_as_float(unsigned bits) { return same_bits<float>(bits); }
static inline unsigned __float_as_uint(float x) { return same_bits<unsigned>(x); }
static inline double __longlong_as_double(long long bits) { return same_bits<double>(bits); }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline unsigned __umulhi(unsigned a, unsigned b) {
  return static_cast<unsigned>((static_cast<std::uint64_t>(a) * b) >> 32);
}
static inline float __double2float_rz(double x) {
  const float nearest = static_cast<float>(x);
  return std::fabs(static_cast<double>(nearest)) > std::fabs(x) ? std::nextafter(nearest, 0.0F)
                                                                : nearest;
}
template <class Int>
static inline Int toward_zero(double x) {
  const double most = std::ldexp(1.0, 8 * sizeof(Int) - 1);
  if (x >= most) return static_cast<Int>(~(static_cast<Int>(1) << (8 * sizeof(Int) - 1)));
  if (x <= -most) return static_cast<Int>(1) << (8 * sizeof(Int) - 1);
  return static_cast<Int>(x);
}
static inline int __float2int_rz(float x) { return toward_zero<int>(x); }
static inline int __double2int_rz(double x) { return toward_zero<int>(x); }
static inline long long __float2ll_rz(float x) { return toward_zero<long long>(x); }
static inline long long __double2ll_rz(double x) { return toward_zero<long long>(x); }

/// An address that is not aligned is a fault here, too.
template <class T>
static inline T __ldg(const T* from) {
  if (reinterpret_cast<std::uintptr_t>(from) % alignof(T) != 0) __builtin_trap();
  return *from;
}
static inline void atomicOr(int* at, int value) { *at |= value; }
static inline void atomicMax(int* at, int value) {
  if (value > *at) *at = value;
}
template <class T>
static inline T __shfl_xor_sync(unsigned, T value, int by) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof(value));
  bits = hooks.exchange(bits)[hooks.lane() ^ static_cast<unsigned>(by)];
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
static inline void __syncthreads() { hooks.wait_block(); }
static inline void __syncwarp(unsigned) { hooks.exchange(0); }

// What printed kernels write in assembly language.
static inline unsigned char* shared_memory() { return static_cast<unsigned char*>(hooks.shared()); }
static inline void prefetch_l2(const void* from) {
  static volatile char seen;
  seen = *static_cast<const char*>(from);  // what is requested early is there
}
// Copied at once: kernels that wait too little are not found here.
static inline void copy_async(void* to, const void* from, std::size_t bytes, bool there) {
  if (reinterpret_cast<std::uintptr_t>(to) % bytes != 0) __builtin_trap();
  if (reinterpret_cast<std::uintptr_t>(from) % bytes != 0) __builtin_trap();
  if (there)
    std::memcpy(to, from, bytes);
  else
    std::memset(to, 0, bytes);
}
static inline void copy_async_16(void* to, const void* from, bool there) {
  copy_async(to, from, 16, there);
}
template <class T>
static inline void copy_async_one(T* to, const T* from, bool there) {
  copy_async(to, from, sizeof(T), there);
}
static inline void commit_copies() {}
static inline void wait_for_copies() {}
static inline void wait_for_copies_but_one() {}
static inline float power_of_2(float x) { return std::exp2(x); }
static inline void row_barrier(unsigned, unsigned) { hooks.wait_block(); }
static inline float nan_max(float a, float b) { return a >= b || a != a ? a : b; }
static inline float nan_min(float a, float b) { return a <= b || a != a ? a : b; }
static inline unsigned short rounded_bf16(float x) {
  const unsigned bits = __float_as_uint(x);
  if (x != x) return 0x7fff;
  return static_cast<unsigned short>((bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16);
}
static inline unsigned short bits_of_f16(float x) { return same_bits<unsigned short>((_Float16)x); }
static inline float f16_of_bits(unsigned short bits) {
  return static_cast<float>(same_bits<_Float16>(bits));
}

/// Element `e` of 8 in the row that a lane names, and a matrix across.
static inline void load_matrix(unsigned (&to)[4], const unsigned short* row, bool across) {
  if (reinterpret_cast<std::uintptr_t>(row) % 16 != 0) __builtin_trap();
  const std::uint64_t* const rows = hooks.exchange(reinterpret_cast<std::uintptr_t>(row));
  const unsigned lane = hooks.lane();
  for (unsigned m = 0; m < 4; ++m) {
    unsigned short pair[2];
    for (unsigned e = 0; e < 2; ++e) {
      const unsigned r = across ? lane % 4 * 2 + e : lane / 4;
      const unsigned c = across ? lane / 4 : lane % 4 * 2 + e;
      pair[e] = reinterpret_cast<const unsigned short*>(rows[8 * m + r])[c];
    }
    to[m] = pair[0] | static_cast<unsigned>(pair[1]) << 16;
  }
}
static inline void load_matrices(unsigned (&to)[4], const unsigned short* row) {
  load_matrix(to, row, false);
}
static inline void load_matrices_across(unsigned (&to)[4], const unsigned short* row) {
  load_matrix(to, row, true);
}
static inline unsigned pair_of_bf16(float low, float high) {
  return rounded_bf16(low) | static_cast<unsigned>(rounded_bf16(high)) << 16;
}
/// As PTX lays out mma.m16n8k16: registers of A by rows, of B by columns.
static inline void multiply_bf16(float& s0, float& s1, float& s2, float& s3, const unsigned (&a)[4],
                                 unsigned b0, unsigned b1) {
  struct Given {
    unsigned a[4], b[2];
  } const mine{{a[0], a[1], a[2], a[3]}, {b0, b1}};
  const std::uint64_t* const given = hooks.exchange(reinterpret_cast<std::uintptr_t>(&mine));
  const auto of_lane = [&](unsigned lane) { return reinterpret_cast<const Given*>(given[lane]); };
  const auto half = [](unsigned pair, unsigned e) {
    return __uint_as_float(e % 2 != 0 ? pair & 0xffff0000U : pair << 16);
  };
  const unsigned lane = hooks.lane();
  float* const sums[4] = {&s0, &s1, &s2, &s3};
  for (unsigned i = 0; i < 4; ++i) {
    const unsigned row = lane / 4;
    const unsigned column = lane % 4 * 2 + i % 2;
    for (unsigned k = 0; k < 16; ++k) {
      const unsigned pair = k % 8 / 2;
      const float x = half(of_lane(row * 4 + pair)->a[i / 2 + k / 8 * 2], k);
      const float y = half(of_lane(column * 4 + pair)->b[k / 8], k);
      *sums[i] += x * y;
    }
  }
  hooks.exchange(0);  // until then, others read
}
