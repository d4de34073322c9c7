#pragma once
// The widths of vectors that this processor has and that programs promise the same bits for.

#include <hwy/targets.h>

#include <cstdint>

namespace segfuse::testing {

/// Calls body(name) for AVX-512 and AVX2 where they are, and returns how many there were. What
/// keeps its kernels from before is not affected.
template <class Body>
int for_each_vector_width(const Body& body) {
  int tried = 0;
  const std::int64_t supported = hwy::SupportedTargets();
  for (const std::int64_t target : {HWY_AVX3, HWY_AVX2}) {
    if ((supported & target) == 0) continue;
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
    body(hwy::TargetName(target));
    ++tried;
  }
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return tried;
}

}  // namespace segfuse::testing
