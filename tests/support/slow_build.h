#pragma once
// A build with sanitizers takes several times as long, and looks at how code runs rather than at
// what it computes: the other builds try all random cases.

#include <cstdint>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SEGFUSE_SLOW_BUILD 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SEGFUSE_SLOW_BUILD 1
#endif
#endif
#ifndef SEGFUSE_SLOW_BUILD
#define SEGFUSE_SLOW_BUILD 0
#endif

namespace segfuse::testing {

/// Of `count` random cases, as many as this build has time for.
constexpr std::uint64_t cases(std::uint64_t count) {
  return SEGFUSE_SLOW_BUILD ? (count + 7) / 8 : count;
}

}  // namespace segfuse::testing
