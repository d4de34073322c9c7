// Computations of single values in C.

#include <fmt/core.h>

#include <set>

#include "base/half_types.h"
#include "compiler/codegen/cpu/c_statements.h"
#include "compiler/op_facts.h"

namespace segfuse::compiler::cpu {

using namespace loop;
using ir::Op;

namespace {

/// Whether the operation gives a bool, which C's operators on uniform values do too.
bool is_test(Op op) {
  const ir::DTypeRule rule = ir::info(op).rule;
  return rule == ir::DTypeRule::kCompare || rule == ir::DTypeRule::kLogical;
}

/// C's expression of a float operation that has operators in place of functions; empty if not.
std::string in_operators(Op op, DType of, const std::string& a, const std::string& b) {
  if (!is_float(of) || is_test(op)) return {};
  if (const std::string_view sign = ir::infix(op); !sign.empty())
    return fmt::format("{} {} {}", a, sign, b);
  if (op == Op::neg) return "-" + a;
  if (op == Op::square) return a + " * " + a;
  if (op == Op::reciprocal) return literal(of, 1) + " / " + a;
  return {};
}

/// Whether f32 in between would round twice.
bool narrows(DType from, DType to) {
  return is_half(to) && (from == DType::kF64 || is_integer(from));
}

}  // namespace

std::string CStatements::rounded(ValueId result, const std::string& value) const {
  const DType dtype = kernel_.dtype(result);
  if (!is_half(dtype)) return value;
  const std::string round = fmt::format("sf_round_{}", memory_type(dtype));
  if (varying_.value(result)) return round + "(" + value + ")";
  return "sf_first_f32(" + round + "(sf_all_f32(" + value + ")))";
}

std::string CStatements::compute(const Compute& s, const Lane* lane) const {
  const std::string value = varying_.value(s.result) ? vector_compute(s, lane) : scalar_compute(s);
  const bool exact = keeps_precision(s.op) ||
                     (s.op == Op::cast && kernel_.dtype(s.operands[0]) == kernel_.dtype(s.result));
  return exact ? value : rounded(s.result, value);
}

std::string CStatements::vector_compute(const Compute& s, const Lane* lane) const {
  const DType of = kernel_.dtype(s.operands.back());
  const std::string a = names_.value(s.operands[0], lane);
  const std::string b = s.operands.size() > 1 ? names_.value(s.operands[1], lane) : "";
  if (std::string text = in_operators(s.op, of, a, b); !text.empty()) return text;
  if (s.op == Op::cast) {
    const std::string_view to = lane_type(kernel_.dtype(s.result));
    if (to == lane_type(of)) return a;
    return fmt::format("sf_{}_from_{}({})", narrows(of, kernel_.dtype(s.result)) ? "narrowed" : to,
                       lane_type(of), a);
  }
  std::string operands;
  for (const ValueId operand : s.operands)
    operands += (operands.empty() ? "" : ", ") + names_.vector(operand, lane);
  const std::string_view name = s.op == Op::where ? "select" : ir::info(s.op).name;
  return fmt::format("sf_{}_{}({})", name, lane_type(of), operands);
}

std::string CStatements::scalar_compute(const Compute& s) const {
  const DType of = kernel_.dtype(s.operands.back());
  const DType to = kernel_.dtype(s.result);
  const std::string a = names_.value(s.operands[0], nullptr);
  const std::string b = s.operands.size() > 1 ? names_.value(s.operands[1], nullptr) : "";
  if (is_test(s.op) && !ir::infix(s.op).empty())
    return fmt::format("{} {} {}", a, ir::infix(s.op), b);
  if (s.op == Op::logical_not) return "!" + a;
  if (s.op == Op::where)
    return fmt::format("{} ? {} : {}", a, b, names_.value(s.operands[2], nullptr));
  if (std::string text = in_operators(s.op, of, a, b); !text.empty()) return text;
  std::string name = fmt::format("{}_{}", ir::info(s.op).name, lane_type(of));
  if (s.op == Op::cast) {
    if (lane_type(to) == lane_type(of)) return a;
    if (to == DType::kBool) return a + " != 0";
    const bool narrow = narrows(of, to);
    if (!narrow && (is_float(to) || !is_float(of)))
      return fmt::format("({}){}", scalar_type(to), a);
    name = fmt::format("{}_from_{}", narrow ? "narrowed" : lane_type(to), lane_type(of));
  }
  std::string operands;
  for (const ValueId operand : s.operands)
    operands += (operands.empty() ? "" : ", ") + names_.vector(operand, nullptr);
  return fmt::format("sf_first_{}(sf_{}({}))", lane_type(to), name, operands);
}

std::string CStatements::from_index(const FromIndex& s, const Lane* lane) const {
  const DType dtype = kernel_.dtype(s.result);
  std::string value;
  if (varying_.value(s.result)) {
    value = names_.vector(s.index, lane);
    const bool narrow = narrows(DType::kI64, dtype);
    if (dtype != DType::kI64)
      value = fmt::format("sf_{}_from_i64({})", narrow ? "narrowed" : lane_type(dtype), value);
  } else {
    value = names_.scalar(s.index, lane);
    if (dtype == DType::kBool) return "(" + value + ") != 0";
    if (narrows(DType::kI64, dtype)) {
      value = fmt::format("sf_first_f32(sf_narrowed_from_i64(sf_all_i64({})))", value);
    } else if (dtype != DType::kI64) {
      value = fmt::format("({})({})", scalar_type(dtype), value);
    }
  }
  return rounded(s.result, value);
}

std::string CStatements::random(const Random& s, const Lane* lane) const {
  const std::string draw =
      fmt::format("sf_random_uniform({}, {}, {}, {})", names_.value(s.key, lane),
                  names_.value(s.sequence, lane), s.stream, names_.vector(s.element, lane));
  return varying_.value(s.result) ? draw : "sf_first_f32(" + draw + ")";
}

}  // namespace segfuse::compiler::cpu
