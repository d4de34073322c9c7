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

// Blocks of a cluster, from sm_90 on: counts of bytes that others send, in shared memory.

DEVICE unsigned shared_address(const void* at) {
  return static_cast<unsigned>(__cvta_generic_to_shared(at));
}
DEVICE void start_arrivals(unsigned long long* arrivals) {
  asm volatile(
      "mbarrier.init.shared::cta.b64 [%0], 1;\n\tfence.mbarrier_init.release.cluster;" ::"r"(
          shared_address(arrivals))
      : "memory");
}
DEVICE void end_arrivals(unsigned long long* arrivals) {
  asm volatile("mbarrier.inval.shared::cta.b64 [%0];" ::"r"(shared_address(arrivals)) : "memory");
}
/// The next phase is over when so many bytes have come.
DEVICE void expect_arrivals(unsigned long long* arrivals, int bytes) {
  asm volatile(
      "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(arrivals)),
      "r"(bytes)
      : "memory");
}
/// Waits until the phase of this parity is over; the first one has 0.
DEVICE void wait_for_arrivals(unsigned long long* arrivals, int parity) {
  unsigned over;
  do {
    asm volatile(
        "{\n\t.reg .pred over;\n\t"
        "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 over, [%1], %2;\n\t"
        "selp.u32 %0, 1, 0, over;\n\t}"
        : "=r"(over)
        : "r"(shared_address(arrivals)), "r"(parity)
        : "memory");
  } while (over == 0);
}
/// To where `at` is in another block of the cluster, or this one, counted there in `arrivals`.
DEVICE void send(double* at, unsigned long long* arrivals, unsigned block, double value) {
  unsigned there;
  unsigned counted;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(there) : "r"(shared_address(at)), "r"(block));
  asm("mapa.shared::cluster.u32 %0, %1, %2;"
      : "=r"(counted)
      : "r"(shared_address(arrivals)), "r"(block));
  asm volatile(
      "st.async.shared::cluster.mbarrier::complete_tx::bytes.b64 [%0], %1, [%2];" ::"r"(there),
      "l"(__double_as_longlong(value)), "r"(counted)
      : "memory");
}
/// All threads of all blocks of the cluster; what they wrote before, all see after it.
DEVICE void cluster_sync() {
  asm volatile("barrier.cluster.arrive.release;\n\tbarrier.cluster.wait.acquire;" ::: "memory");
}

}  // namespace segfuse::semicrf::gpu

#endif
