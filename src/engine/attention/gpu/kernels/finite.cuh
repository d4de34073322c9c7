#pragma once
// Whether up to three stacks of matrices are finite, by 32 rows.

constexpr int kAxes = 6;

struct Arguments {
  const void* of[3];  // 0: none
  unsigned char* flags;
  long long batches, rows, axes;
  long long size[kAxes];
  struct Operand {
    long long lead[kAxes];
    long long row, width, real;  // of REAL, not of ELEMENT
  } operand[3];
};

[[maybe_unused]] static __device__ __forceinline__ float real_of(unsigned short bits) {
  return bf16_of_bits(bits);
}
[[maybe_unused]] static __device__ __forceinline__ float real_of(float x) { return x; }
[[maybe_unused]] static __device__ __forceinline__ double real_of(double x) { return x; }

extern "C" __global__ void __launch_bounds__(256, 1) attention_finite(const Arguments g) {
  const long long groups = (g.rows + 31) / 32;
  const int lane = threadIdx.x % 32;
  for (long long i = blockIdx.x * 8ll + threadIdx.x / 32; i < g.batches * groups;
       i += gridDim.x * 8ll) {
    const long long first = i % groups * 32;
    const long long last = first + 32 < g.rows ? first + 32 : g.rows;
    REAL sum = 0;  // of zeros, or NaN
#pragma unroll
    for (int w = 0; w < 3; ++w) {
      if (!g.of[w]) continue;
      unsigned left = static_cast<unsigned>(i / groups);
      long long from = 0;
#pragma unroll
      for (int axis = kAxes - 1; axis >= 0; --axis) {
        if (axis >= g.axes) continue;
        const unsigned size = static_cast<unsigned>(g.size[axis]);
        from += left % size * g.operand[w].lead[axis];
        left /= size;
      }
      const int width = static_cast<int>(g.operand[w].width);
      for (long long e = lane; e < (last - first) * width; e += 32) {
        const long long at = from + (first + e / width) * g.operand[w].row + e % width;
        const REAL x = g.operand[w].real ? static_cast<const REAL*>(g.of[w])[at]
                                         : real_of(static_cast<const ELEMENT*>(g.of[w])[at]);
        sum += x * REAL(0);
      }
    }
#pragma unroll
    for (int by = 16; by > 0; by /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, by);
    if (lane == 0) g.flags[i] = sum == REAL(0);
  }
}
