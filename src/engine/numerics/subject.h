#pragma once
// What is examined: a way to run programs. The doctor knows no more of it, so tests examine faulty
// ones, and a back end of another device needs one function.

#include <functional>
#include <span>
#include <vector>

#include "engine/executor.h"
#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::engine::numerics {

/// One run of several that should give the same bits.
struct Trial {
  int number = 0;
  int threads = 1;      ///< 0: as many as this process has cores
  bool poison = false;  ///< memory holds NaN before it is written, wherever the subject can do that
};

/// Runs a program that is verified and has no dead code. `inputs` are the caller's to change.
using Subject = std::function<std::vector<Tensor>(
    const ir::Fusion& fusion, std::span<const Tensor> inputs, const Trial& trial)>;

/// What runs programs on the CPU.
Subject cpu_subject(Backend backend);

}  // namespace segfuse::engine::numerics
