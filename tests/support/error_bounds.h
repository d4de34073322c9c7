#pragma once
// How far a right evaluation may be from the exact one: a bound for every element, by a running
// error analysis beside the interpreter.

#include <span>
#include <vector>

#include "engine/numerics/bounds.h"
#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::testing {

/// Both f64 (the value of integers and bools: i64, and a bound of 0).
struct Bounded {
  Tensor value;
  Tensor bound;
};

/// Every output of a Fusion with f32, f64, integers and bools in it, evaluated in double, and how
/// far from it kernels may be that round each value to its type, add in any order, and keep the
/// bounds of docs/codegen.md (a device's: docs/doctor.md) for elementary functions. InternalError
/// for an operation without a rule: those whose result can jump.
std::vector<Bounded> bounded_outputs(
    const ir::Fusion& fusion, std::span<const Tensor> inputs,
    engine::numerics::Functions functions = engine::numerics::Functions::kOurs);

}  // namespace segfuse::testing
