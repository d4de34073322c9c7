#pragma once
// Small programs cut out of larger ones, with numbers in place of sizes.

#include <functional>
#include <span>
#include <string>
#include <vector>

#include "ir/bind.h"
#include "ir/fusion.h"
#include "segfuse/tensor.h"

namespace segfuse::engine::numerics {

/// A program of its own that computes `outputs` of a larger one from `inputs` of it, both in the
/// order of `fusion`.
struct Part {
  ir::Fusion fusion;
  std::vector<ir::ValId> inputs;
  std::vector<ir::ValId> outputs;
  std::vector<ir::ExprId> exprs;  ///< of the larger one, in topological order
  std::vector<ir::ValId> made;    ///< by ValId of the larger one; invalid for what is not here
};

/// Everything between the values for which `given` holds and `outputs`. Inputs of `source` are
/// always given.
Part cut_part(const ir::Fusion& source, const ir::Sizes& sizes, std::span<const ir::ValId> outputs,
              const std::function<bool(ir::ValId)>& given);

/// What print() calls each value, by ValId: "%3".
std::vector<std::string> printed_names(const ir::Fusion& fusion);
/// The line that print() has for an expression, without blanks around it.
std::string statement(const ir::Fusion& fusion, ir::ExprId id);

/// Its text form with the elements of its inputs in comments, which read_values() finds again.
std::string text_with_values(const ir::Fusion& fusion, std::span<const Tensor> inputs,
                             const std::vector<std::string>& comments);
/// An input's elements that stand in a comment of a program's text; nothing where there are none.
struct GivenValues {
  std::string input;
  std::vector<double> elements;
};
/// DataError with the line of what is not understood.
std::vector<GivenValues> read_values(std::string_view text, std::string_view source);

}  // namespace segfuse::engine::numerics
