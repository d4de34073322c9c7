#pragma once
// The functions of a BLAS library, opened at run time where it is found.

#include <string_view>

namespace segfuse::engine {

/// Products as CBLAS has them, row major: c (m, n) = a (m, k) b (k, n). Both are null where there
/// is no library; callers then use loops of their own.
struct Blas {
  template <class T>
  using Gemm = void (*)(int order, int transpose_a, int transpose_b, int m, int n, int k, T alpha,
                        const T* a, int lda, const T* b, int ldb, T beta, T* c, int ldc);
  static constexpr int kRowMajor = 101;
  static constexpr int kNoTranspose = 111;
  static constexpr int kTranspose = 112;

  Gemm<float> sgemm = nullptr;
  Gemm<double> dgemm = nullptr;
  /// The workers are ours: the library must not start its own.
  void (*set_threads)(int threads) = nullptr;
  /// A buffer of the library, and back. Each product that runs takes one; null where a library has
  /// none or does not say.
  void* (*take_buffer)(int) = nullptr;
  void (*give_buffer)(void*) = nullptr;
  std::string_view name = "built-in loops";
  std::string_view core;  ///< the processor whose kernels the library has chosen, if it says so
};

/// Found at the first call, and the same ever after.
const Blas& blas();

/// Sets the library up for products on `threads` threads. OpenBLAS asks the system for a buffer
/// without end where there is no memory; so its buffers are taken here, after a try whether there
/// is room. Where they do not suffice for all threads, some products wait for others; where there
/// is room for none, DeviceError.
void prepare_blas(int threads);

/// While alive, a product may run: there is a buffer for it.
class BlasCall {
 public:
  BlasCall();
  ~BlasCall();
  BlasCall(const BlasCall&) = delete;
  BlasCall& operator=(const BlasCall&) = delete;
};

}  // namespace segfuse::engine
