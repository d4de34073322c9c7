// What the device compiler brings, under the names that the kernels use.

namespace segfuse::semicrf::gpu {

static __device__ __forceinline__ double to_double(INPUT x) { return static_cast<double>(x); }
static __device__ __forceinline__ INPUT from_double(double x) { return static_cast<INPUT>(x); }

/// 1/x for normal x, to about 20 bits.
static __device__ __forceinline__ double approximate_reciprocal(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

}  // namespace segfuse::semicrf::gpu

#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]
