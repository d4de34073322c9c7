#pragma once
// A program run operation by operation in the interpreter, each value rounded to its type:
// what is wrong with the program and its inputs themselves, on any back end.

#include <optional>
#include <span>
#include <string>
#include <vector>

#include "ir/fusion.h"
#include "segfuse/doctor/numerics.h"
#include "segfuse/tensor.h"

namespace segfuse::engine::numerics {

struct WalkFault {
  NumericsFault fault = NumericsFault::kNaN;
  ir::ExprId expr;  ///< invalid: an input
  ir::ValId val;    ///< the value that is wrong: a result, an operand of indices or casts, an input
  std::int64_t element = -1;  ///< of it
  double found = 0;
  std::string message;  ///< of kIndex, kCast and kRefused
};

struct Walk {
  std::optional<WalkFault> fault;  ///< the first
  /// By ValId, in their types. The walk ends with an index out of range and with a refusal.
  std::vector<Tensor> values;
};

/// An operation is at fault that makes NaN of operands without NaN, or an infinity of finite ones
/// (of elementwise operations those of the same element count), or an integer of what is none,
/// unless where() or a movement puts the element aside; that takes an index out of range, or that
/// refuses. An input with NaN is at fault when an output is NaN or something is refused.
Walk walk(const ir::Fusion& fusion, std::span<const Tensor> inputs);

/// The fault of a walk in one sentence, as check_numerics words it.
std::string fault_text(const ir::Fusion& fusion, const Walk& walk);

/// A number in words: "0.5", "nan", "-inf".
std::string number_text(double value);
/// "[3, 1]" of an element by its row-major position.
std::string index_text(std::int64_t element, const Shape& shape);

}  // namespace segfuse::engine::numerics
