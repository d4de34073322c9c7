#pragma once
// SIMD targets that the loops of the executor are compiled for: the baseline, AVX2 and AVX-512.
// Include before any header of Highway.

#include "base/code/simd_targets.h"

#ifndef HWY_DISABLED_TARGETS
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL | SEGFUSE_NO_SVE)
#endif
