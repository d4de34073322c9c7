#pragma once
// The numerics doctor over any way to run programs.

#include <span>

#include "engine/numerics/subject.h"
#include "segfuse/doctor/numerics.h"

namespace segfuse::engine::numerics {

/// See examine_numerics(): `fusion` on `inputs`, run by `place`. Nothing of the arguments is
/// changed.
NumericsReport examine(const ir::Fusion& fusion, std::span<const Tensor> inputs, const Place& place,
                       int runs);
/// The same of something that computes as the CPU does.
inline NumericsReport examine(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                              const Subject& subject, int runs) {
  return examine(fusion, inputs, Place{.subject = subject}, runs);
}

}  // namespace segfuse::engine::numerics
