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
  /// Gives bits to the warp and gets those of lane `from ^ by`.
  std::uint64_t (*across)(std::uint64_t bits, unsigned by);
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
  bits = hooks.across(bits, static_cast<unsigned>(by));
  std::memcpy(&value, &bits, sizeof(value));
  return value;
}
static inline void __syncthreads() { hooks.wait_block(); }
static inline void __syncwarp(unsigned) { hooks.across(0, 0); }

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
