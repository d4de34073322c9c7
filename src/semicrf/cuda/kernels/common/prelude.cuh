#pragma once
// The device's language under the names that the kernels use. For a host's compiler, the file that
// includes a kernel defines them first.

#ifdef __CUDACC__

#define DEVICE static __device__ __forceinline__
#define DEVICE_MEMBER __device__ __forceinline__
#define KERNEL extern "C" __global__ void
#define DYNAMIC_SHARED(type, name) extern __shared__ type name[]

namespace segfuse::semicrf::gpu {

/// 1/x for normal x, to about 20 bits.
DEVICE double approximate_reciprocal(double x) {
  double y;
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(y) : "d"(x));
  return y;
}

}  // namespace segfuse::semicrf::gpu

#endif
