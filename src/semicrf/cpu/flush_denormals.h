#pragma once
// Denormal results as zero while in scope: they carry no weight in the recursions and cost a
// microcode assist each on x86. Other processors are not slow on them, and do it for the same
// numbers.

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cstdint>

namespace segfuse::semicrf {

class FlushDenormals {
 public:
#if defined(__SSE2__)
  FlushDenormals() : saved_(_mm_getcsr()) { _mm_setcsr(saved_ | 0x8040U); }
  ~FlushDenormals() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  FlushDenormals() {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    set(saved_ | std::uint64_t{1} << 24);  // FZ
  }
  ~FlushDenormals() { set(saved_); }
#else
  FlushDenormals() = default;
  ~FlushDenormals() = default;
#endif
  FlushDenormals(const FlushDenormals&) = delete;
  FlushDenormals& operator=(const FlushDenormals&) = delete;

 private:
#if defined(__aarch64__)
  static void set(std::uint64_t control) {
    asm volatile("msr fpcr, %0" : : "r"(control) : "memory");
  }
  std::uint64_t saved_ = 0;
#else
  [[maybe_unused]] unsigned saved_ = 0;
#endif
};

}  // namespace segfuse::semicrf
