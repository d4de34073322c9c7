#pragma once
// Scalars in CUDA C++: types, literals, elementwise operations.

#include <set>
#include <string>
#include <vector>

#include "ir/op.h"
#include "segfuse/tensor.h"

namespace segfuse::compiler::cuda {

/// The type of an element in memory; f16 and bf16 are their bits.
std::string stored_type(DType dtype);
/// The type of a value; f16 and bf16 are float.
std::string value_type(DType dtype);

/// Where an element was brought to: a variable of its own, or the e-th of a Pack.
struct ElementSlot {
  std::string variable;
  bool of_pack = false;
  std::string element() const { return of_pack ? variable + ".at[e]" : variable; }
};

/// What an element in memory is as a value, and the other way; the value is one of `dtype`.
std::string from_stored(DType dtype, const std::string& element);
std::string from_stored(DType dtype, const ElementSlot& at);
std::string to_stored(DType dtype, const std::string& value);
/// The number as a value, rounded to the type.
std::string literal(DType dtype, double value);
/// The same as an element in memory.
std::string stored_literal(DType dtype, double value);
/// An integer of the text's type for positions, in brackets when negative.
std::string whole_literal(std::int64_t value);

/// Prints operations and collects the functions that they need.
class Operations {
 public:
  std::string apply(ir::Op op, DType result, DType operand,
                    const std::vector<std::string>& operands);
  /// The definitions of what apply() named.
  std::string functions() const;

 private:
  std::string formula(ir::Op op, DType operand, const std::vector<std::string>& operands);
  std::set<std::string> functions_;
};

}  // namespace segfuse::compiler::cuda
