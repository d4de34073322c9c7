#pragma once
// Denormal results as zero while in scope: they carry no weight in the recursions and cost a
// microcode assist each. Only x86 is slow on them.

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

namespace segfuse::semicrf {

class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
#else
  FlushDenormals() = default;
  ~FlushDenormals() = default;
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
  [[maybe_unused]] unsigned saved_ = 0;
};

}  // namespace segfuse::semicrf
