#pragma once
// How a thread rounds. It belongs to the thread, so what calls us may have changed it: XLA's
// threads and torch.set_flush_denormal(True) flush denormals.

#if defined(__SSE2__)
#include <xmmintrin.h>
#endif

#include <cstdint>

namespace segfuse {

enum class Denormals {
  kKept,     ///< as everywhere, unless said otherwise
  kFlushed,  ///< to zero, operands and results: on x86 each costs an assist by microcode
};

/// While in scope this thread rounds to nearest, treats denormals in the given way and traps
/// nothing: results have the same bits on all threads, in any caller's mode.
class FloatMode {
 public:
#if defined(__SSE2__)
  explicit FloatMode(Denormals denormals) : saved_(_mm_getcsr()) {
    _mm_setcsr(denormals == Denormals::kFlushed ? 0x9FC0U : 0x1F80U);
  }
  ~FloatMode() { _mm_setcsr(saved_); }
#elif defined(__aarch64__)
  explicit FloatMode(Denormals denormals) {
    asm volatile("mrs %0, fpcr" : "=r"(saved_));
    set(denormals == Denormals::kFlushed ? std::uint64_t{1} << 24 : 0);  // FZ
  }
  ~FloatMode() { set(saved_); }
#else
  explicit FloatMode(Denormals) {}
  ~FloatMode() = default;
#endif
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

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

}  // namespace segfuse
