#pragma once
// What an evaluator makes of a program, held against what is right within derived bounds; and the
// least part of the program that goes wrong.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "engine/numerics/bounds.h"
#include "support/random/random_fusion.h"

namespace segfuse::testing {

/// Runs a program by itself.
using Evaluator =
    std::function<std::vector<Tensor>(const ir::Fusion& fusion, const std::vector<Tensor>& inputs)>;

/// Where outputs are wrong, or nothing. Exact ones have no error; others are within the bounds of
/// their program (error_bounds.h), twice where the interpreter rounds in the same type.
std::string difference(const ir::Fusion& fusion, Numbers numbers, const std::vector<Tensor>& inputs,
                       const std::vector<Tensor>& found,
                       engine::numerics::Functions functions = engine::numerics::Functions::kOurs);

/// What goes wrong in a run, or nothing.
std::string fault_of(const ir::Fusion& fusion, Numbers numbers, const std::vector<Tensor>& inputs,
                     const Evaluator& evaluate,
                     engine::numerics::Functions functions = engine::numerics::Functions::kOurs);

/// The smallest part that goes wrong by itself: its first value, in topological order, that does.
std::string shrunk(const ir::Fusion& fusion, Numbers numbers, const std::vector<Tensor>& inputs,
                   const Evaluator& evaluate,
                   engine::numerics::Functions functions = engine::numerics::Functions::kOurs);

}  // namespace segfuse::testing
