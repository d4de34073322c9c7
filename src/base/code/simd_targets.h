#pragma once
// What every source with vectors of Highway leaves out. Include before any header of Highway.

/// For HWY_DISABLED_TARGETS: our kernels hold vectors in arrays and structures, which the types of
/// SVE forbid. On aarch64 the vectors are those of NEON.
#define SEGFUSE_NO_SVE (HWY_SVE | HWY_SVE_256 | HWY_SVE2 | HWY_SVE2_128)
