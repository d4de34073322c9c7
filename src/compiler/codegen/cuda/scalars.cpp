#include "compiler/codegen/cuda/scalars.h"

#include <fmt/ranges.h>

#include <bit>
#include <cmath>
#include <limits>

#include "base/half.h"
#include "base/half_types.h"
#include "compiler/op_facts.h"
#include "segfuse/error.h"

namespace segfuse::compiler::cuda {

namespace {

/// Integers wrap: formulas that may leave their range, in unsigned arithmetic.
std::string wrapping(ir::Op op, const std::string& u) {
  switch (op) {
    case ir::Op::neg: return fmt::format("{0}(0) - {0}(a)", u);
    case ir::Op::abs: return fmt::format("a < 0 ? {0}(0) - {0}(a) : {0}(a)", u);
    case ir::Op::square: return fmt::format("{0}(a) * {0}(a)", u);
    case ir::Op::add: return fmt::format("{0}(a) + {0}(b)", u);
    case ir::Op::sub: return fmt::format("{0}(a) - {0}(b)", u);
    case ir::Op::mul: return fmt::format("{0}(a) * {0}(b)", u);
    default: return {};  // any other: its formula stays in the range
  }
}

std::string without_std(std::string text) {
  for (std::size_t at = text.find("std::"); at != text.npos; at = text.find("std::"))
    text.erase(at, 5);
  return text;
}

std::string cast(DType to, DType from, const std::string& a) {
  if (to == from) return a;
  if (to == DType::kBool) return fmt::format("({} != 0)", a);
  if (to == DType::kI32)
    return is_float(from) ? fmt::format("int_of({})", a) : fmt::format("int({})", a);
  if (to == DType::kI64)
    return is_float(from) ? fmt::format("long_of({})", a) : fmt::format("(long long)({})", a);
  if (to == DType::kF64) return fmt::format("double({})", a);
  if (!is_half(to)) return is_half(from) ? a : fmt::format("float({})", a);
  std::string narrow = a;
  if (from == DType::kF64 || is_integer(from)) narrow = fmt::format("narrowed(double({}))", a);
  if (from == DType::kBool) return fmt::format("float({})", a);
  return fmt::format("{}({})", to == DType::kF16 ? "round_f16" : "round_bf16", narrow);
}

std::string float_literal(float value) {
  if (!std::isfinite(value))
    return fmt::format("__uint_as_float(0x{:x}u)", std::bit_cast<std::uint32_t>(value));
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  text += "f";
  return std::signbit(value) ? "(" + text + ")" : text;
}

std::string double_literal(double value) {
  if (!std::isfinite(value))
    return fmt::format("__longlong_as_double(0x{:x}ll)", std::bit_cast<std::uint64_t>(value));
  std::string text = fmt::format("{}", value);
  if (text.find_first_of(".e") == text.npos) text += ".0";
  return std::signbit(value) ? "(" + text + ")" : text;
}

}  // namespace

std::string stored_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "unsigned char";
    case DType::kF16:
    case DType::kBF16: return "unsigned short";
    default: return value_type(dtype);
  }
}

std::string value_type(DType dtype) {
  switch (dtype) {
    case DType::kBool: return "bool";
    case DType::kI32: return "int";
    case DType::kI64: return "long long";
    case DType::kF64: return "double";
    default: return "float";
  }
}

std::string from_stored(DType dtype, const std::string& element) {
  switch (dtype) {
    case DType::kBool: return element + " != 0";
    case DType::kF16: return fmt::format("f16_of_bits({})", element);
    case DType::kBF16: return fmt::format("bf16_of_bits({})", element);
    default: return element;
  }
}

std::string from_stored(DType dtype, const ElementSlot& at) {
  // Two elements of a Pack are a word.
  if (dtype == DType::kBF16 && at.of_pack) return fmt::format("bf16_at({}, e)", at.variable);
  return from_stored(dtype, at.element());
}

std::string to_stored(DType dtype, const std::string& value) {
  switch (dtype) {
    case DType::kBool: return fmt::format("(unsigned char)({} ? 1 : 0)", value);
    case DType::kF16: return fmt::format("bits_of_f16({})", value);
    case DType::kBF16: return fmt::format("bits_of_bf16({})", value);
    default: return value;
  }
}

std::string whole_literal(std::int64_t value) {
  if (value == std::numeric_limits<std::int64_t>::min()) return "(-9223372036854775807ll - 1)";
  const bool wide = value > 2147483647 || value < -2147483647;
  const std::string text = fmt::format("{}{}", value, wide ? "ll" : "");
  return value < 0 ? "(" + text + ")" : text;
}

std::string literal(DType dtype, double value) {
  switch (dtype) {
    case DType::kBool: return value != 0 ? "true" : "false";
    case DType::kI32: return fmt::format("int({})", whole_literal(saturate_cast<int>(value)));
    case DType::kI64:
      return fmt::format("(long long)({})", whole_literal(saturate_cast<std::int64_t>(value)));
    case DType::kF16: return float_literal(half_to_float(double_to_half(value)));
    case DType::kBF16: return float_literal(bfloat16_to_float(double_to_bfloat16(value)));
    case DType::kF32: return float_literal(static_cast<float>(value));
    case DType::kF64: return double_literal(value);
  }
  throw InternalError("a literal of no type");
}

std::string stored_literal(DType dtype, double value) {
  if (dtype == DType::kBool) return value != 0 ? "1" : "0";
  if (dtype == DType::kF16) return fmt::format("0x{:x}", double_to_half(value));
  if (dtype == DType::kBF16) return fmt::format("0x{:x}", double_to_bfloat16(value));
  return literal(dtype, value);
}

std::string Operations::formula(ir::Op op, DType operand,
                                const std::vector<std::string>& operands) {
  if (ir::info(op).formula.empty())
    throw InternalError(fmt::format("'{}' has no formula", ir::info(op).name));
  const ir::DTypeRule rule = ir::info(op).rule;
  const bool truth = rule == ir::DTypeRule::kCompare || rule == ir::DTypeRule::kTest;
  const std::string type = value_type(operand);
  std::string body = without_std(std::string(ir::info(op).formula));
  if (is_integer(operand) && !truth) {
    const std::string wrapped = wrapping(
        op, operand == DType::kI32 ? std::string("unsigned") : std::string("(unsigned long long)"));
    if (!wrapped.empty()) body = fmt::format("({})({})", type, wrapped);
  }
  const bool names_type = body.find("T(") != body.npos;
  const std::string name =
      fmt::format("{}_{}", ir::info(op).name, is_half(operand) ? "f32" : segfuse::name_of(operand));
  functions_.insert(fmt::format(
      "static __device__ __forceinline__ {} {}({} a{}) {{\n{}  return {};\n}}\n",
      truth ? "bool" : type, name, type, operands.size() > 1 ? fmt::format(", {} b", type) : "",
      names_type ? fmt::format("  using T = {};\n", type) : "", body));
  return fmt::format("{}({})", name, fmt::join(operands, ", "));
}

std::string Operations::apply(ir::Op op, DType result, DType operand,
                              const std::vector<std::string>& operands) {
  if (op == ir::Op::cast) return cast(result, operand, operands.at(0));
  std::string text;
  if (op == ir::Op::where) {
    text = fmt::format("{} ? {} : {}", operands.at(0), operands.at(1), operands.at(2));
  } else {
    text = formula(op, operand, operands);
  }
  if (!is_half(result) || keeps_precision(op)) return text;
  return fmt::format("{}({})", result == DType::kF16 ? "round_f16" : "round_bf16", text);
}

std::string Operations::functions() const {
  std::string all;
  for (const std::string& function : functions_) all += function;
  return all;
}

}  // namespace segfuse::compiler::cuda
