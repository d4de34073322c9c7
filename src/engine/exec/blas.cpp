#include "engine/exec/blas.h"

#include "base/os/shared_library.h"
#include "segfuse/error.h"

#if SEGFUSE_OPENBLAS
#include <cblas.h>
#endif

namespace segfuse::engine {
namespace {

#if SEGFUSE_OPENBLAS
template <auto kFunction, class T>
void call(int order, int transpose_a, int transpose_b, int m, int n, int k, T alpha, const T* a,
          int lda, const T* b, int ldb, T beta, T* c, int ldc) {
  kFunction(static_cast<CBLAS_ORDER>(order), static_cast<CBLAS_TRANSPOSE>(transpose_a),
            static_cast<CBLAS_TRANSPOSE>(transpose_b), m, n, k, alpha, a, lda, b, ldb, beta, c,
            ldc);
}

Blas find() {
  return {call<cblas_sgemm, float>, call<cblas_dgemm, double>, openblas_set_num_threads,
          "OpenBLAS"};
}
#elif SEGFUSE_OPENBLAS_AT_RUN_TIME
Blas find() {
  const SharedLibrary library = SharedLibrary::open_first({"libopenblas.so.0", "libopenblas.so"});
  if (!library) return {};
  try {
    Blas found;
    library.load("cblas_sgemm", found.sgemm);
    library.load("cblas_dgemm", found.dgemm);
    library.load("openblas_set_num_threads", found.set_threads);
    found.name = "OpenBLAS";
    return found;
  } catch (const DeviceError&) {  // a library of that name, but not that library
    return {};
  }
}
#else
Blas find() { return {}; }
#endif

}  // namespace

const Blas& blas() {
  static const Blas found = find();
  return found;
}

}  // namespace segfuse::engine
