#pragma once
// The programs whose calls are timed: they have next to nothing to do.

#include "segfuse/ops.h"

namespace segfuse::bench {

using namespace ops;

inline Program pointwise() {
  FusionBuilder f("pointwise");
  const Value x = f.input("x", DType::kF32, {"N"});
  f.output(x * f.input("y", DType::kF32, {"N"}) + 1);
  return f.build();
}

inline Program norm() {
  FusionBuilder f("norm");
  const Value x = f.input("x", DType::kF32, {"B", "C"});
  const Value scale = f.input("scale", DType::kF32, {"C"});
  f.output(layer_norm(x, scale, f.input("shift", DType::kF32, {"C"})));
  return f.build();
}

inline Program layer() {
  FusionBuilder f("layer");
  const Value x = f.input("x", DType::kF32, {"B", "C"});
  const Value scale = f.input("scale", DType::kF32, {"C"});
  f.output(x + gelu(layer_norm(x, scale, f.input("shift", DType::kF32, {"C"}))));
  return f.build();
}

}  // namespace segfuse::bench
