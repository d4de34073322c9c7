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

/// Two words of 64 bits, each as a whole, that other blocks see while this one runs on.
DEVICE void store_now(unsigned long long* at, unsigned long long first, unsigned long long second) {
  asm volatile("st.relaxed.gpu.v2.u64 [%0], {%1, %2};" ::"l"(at), "l"(first), "l"(second)
               : "memory");
}
DEVICE void load_now(const unsigned long long* at, unsigned long long* first,
                     unsigned long long* second) {
  asm volatile("ld.relaxed.gpu.v2.u64 {%0, %1}, [%2];"
               : "=l"(*first), "=l"(*second)
               : "l"(at)
               : "memory");
}

}  // namespace segfuse::semicrf::gpu

#endif
