#pragma once
// What the kernel takes, as plain data: read by the host and by the device compiler alike, so no
// header is included here.

namespace segfuse::doctor::gpu {

/// Tensors that one launch looks at, at most.
inline constexpr int kMaxTensors = 100;

enum NumberKind { kHalf, kBfloat16, kFloat, kDouble };

/// `count` numbers one behind the other. `largest` is raised to their largest magnitude. `most` are
/// the bits of a guess that it is not beyond (all bits: there is none).
struct Numbers {
  const void* data;
  unsigned long long count;
  float* largest;
  int kind;
  unsigned most;
};

struct MagnitudeArguments {
  float* broken;       ///< becomes 1 if a magnitude is beyond its guess
  int only_if_broken;  ///< reads nothing while it is 0
  int unused;
  Numbers tensors[kMaxTensors];
};

}  // namespace segfuse::doctor::gpu
