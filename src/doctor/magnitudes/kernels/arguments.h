#pragma once
// What the kernel takes, as plain data: read by the host and by the device compiler alike, so no
// header is included here.

namespace segfuse::doctor::gpu {

/// Tensors that one launch looks at, at most.
inline constexpr int kMaxTensors = 100;

enum NumberKind { kHalf, kBfloat16, kFloat, kDouble };

/// `count` numbers one behind the other. `largest` is raised to their largest magnitude.
struct Numbers {
  const void* data;
  unsigned long long count;
  float* largest;
  int kind;
  int unused;
};

struct MagnitudeArguments {
  Numbers tensors[kMaxTensors];
};

}  // namespace segfuse::doctor::gpu
