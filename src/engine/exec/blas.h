#pragma once
// The functions of a BLAS library: linked, or opened at run time where it is found.

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
  std::string_view name = "built-in loops";
};

/// Found at the first call, and the same ever after.
const Blas& blas();

}  // namespace segfuse::engine
