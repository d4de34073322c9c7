#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "compiler/op_facts.h"
#include "compiler/passes/passes.h"
#include "compiler/passes/rewrite.h"
#include "ir/interpret/interpreter.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Op;
using ir::ValId;

namespace {

bool representable(double value, DType dtype) {
  if (is_float(dtype)) return true;
  const double end = dtype == DType::kI64 ? 0x1p53 : dtype == DType::kI32 ? 0x1p31 : 2.0;
  return value == std::floor(value) && value >= (dtype == DType::kBool ? 0 : -end) && value < end;
}

/// The formula of `e` for these scalars, by the interpreter itself.
std::optional<double> evaluate(Rewriter& r, const Expr& e, const std::vector<double>& operands) {
  ir::Fusion scalars;
  std::vector<ValId> ids;
  for (std::size_t i = 0; i < operands.size(); ++i)
    ids.push_back(scalars.constant(operands[i], r.dtype(e.operands[i])));
  scalars.add_output(scalars.result(scalars.add_expr(e.op, ids, e.attrs)));
  const Tensor value = interpret(scalars, {}, {}, {.round_to_dtype = true})[0];
  const DType dtype = r.dtype(e.results[0]);
  if (dtype == DType::kI64) {
    constexpr std::int64_t kEnd = std::int64_t{1} << 53;
    const std::int64_t whole = value.span<std::int64_t>()[0];
    if (whole <= -kEnd || whole >= kEnd) return {};
  }
  return representable(value.at(0), dtype) ? std::optional(value.at(0)) : std::nullopt;
}

bool fold_elementwise(Rewriter& r, const Expr& e) {
  if (is_float(r.dtype(e.operands[0])) && !rounds_once(e.op)) return false;
  std::vector<double> operands;
  for (const ValId operand : e.operands) {
    const auto value = r.uniform(operand);
    if (!value) return false;
    operands.push_back(*value);
  }
  const auto value = evaluate(r, e, operands);
  if (!value) return false;
  r.replace(e.results[0], r.full(*value, r.shape(e.results[0]), r.dtype(e.results[0])));
  return true;
}

/// A movement of a constant is that constant in another shape.
bool fold_movement(Rewriter& r, const Expr& e) {
  const auto value = r.uniform(e.operands[0]);
  if (!value) return false;
  switch (ir::as<ir::MovementOp>(e.op)) {
    case ir::MovementOp::broadcast:
      if (r.is(e.operands[0], Op::constant)) return false;  // stands as it should
      break;
    case ir::MovementOp::permute:
    case ir::MovementOp::squeeze:
    case ir::MovementOp::reshape: break;
    case ir::MovementOp::pad:
      if (std::bit_cast<std::uint64_t>(*value) !=
          std::bit_cast<std::uint64_t>(e.attr<double>("value")))
        return false;
      break;
    case ir::MovementOp::slice:  // these may be out of range
    case ir::MovementOp::take:
    case ir::MovementOp::gather:
    case ir::MovementOp::concat:
    case ir::MovementOp::scatter_add:
    case ir::MovementOp::unfold:
    case ir::MovementOp::fold: return false;
  }
  r.replace(e.results[0], r.full(*value, r.shape(e.results[0]), r.dtype(e.results[0])));
  return true;
}

bool fold_extent(Rewriter& r, const Expr& e) {
  const ir::Extent size = r.fusion().canonical(e.attr<ir::Extents>("size")[0]);
  if (!size.is_constant()) return false;
  const auto value = static_cast<double>(size.constant());
  if (!representable(value, r.dtype(e.results[0]))) return false;
  r.replace(e.results[0], r.full(value, {}, r.dtype(e.results[0])));
  return true;
}

/// 1 / value, if it and value are powers of two that the type holds as normal numbers: then x /
/// value and x * (1 / value) round the same number.
std::optional<double> exact_reciprocal(double value, DType dtype) {
  int exponent = 0;
  if (!std::isfinite(value) || std::abs(std::frexp(value, &exponent)) != 0.5) return {};
  const int most = dtype == DType::kF16 ? 13 : 125;
  if (exponent - 1 > most || exponent - 1 < -most) return {};
  return 1 / value;
}

/// The identities of one expression. Each answers with the value that stands for it, or none.
class Identities {
 public:
  Identities(Rewriter& r, const Expr& e) : r_(r), e_(e), real_(is_float(r.dtype(e.operands[0]))) {}

  ValId find() {
    if (e_.op == Op::where) return of_where();
    if (e_.operands.size() == 1) return of_unary();
    return e_.operands.size() == 2 ? of_binary() : ValId{};
  }

 private:
  ValId operand(std::size_t i) const { return e_.operands[i]; }
  /// Bit for bit: -0 is not 0.
  bool is(std::size_t i, double value) const {
    const auto found = r_.uniform(operand(i));
    return found && *found == value && (!real_ || std::signbit(*found) == std::signbit(value));
  }
  /// What is under a negation; invalid if it is none.
  ValId negated(std::size_t i) const {
    const Expr* inner = r_.is(operand(i), Op::neg);
    return inner ? inner->operands[0] : ValId{};
  }
  ValId make(Op op, std::vector<ValId> operands) { return r_.build().make(op, operands); }
  ValId full_like_result(double value) {
    return r_.full(value, r_.shape(e_.results[0]), r_.dtype(e_.results[0]));
  }

  ValId of_unary() {
    const Expr* inner = r_.is(operand(0), e_.op);
    switch (e_.op) {
      case Op::neg:
      case Op::logical_not: return inner ? inner->operands[0] : ValId{};
      case Op::abs:
      case Op::sign:
      case Op::relu:
      case Op::floor:
      case Op::ceil:
      case Op::round: return inner ? operand(0) : ValId{};
      case Op::square:
        if (negated(0).valid()) return make(Op::square, {negated(0)});
        if (const Expr* magnitude = r_.is(operand(0), Op::abs))
          return make(Op::square, {magnitude->operands[0]});
        return {};
      case Op::stop_gradient: return operand(0);  // gradients are there by now
      default: return {};                         // any other: none is known
    }
  }

  ValId of_where() {
    if (operand(1) == operand(2)) return operand(1);
    const auto condition = r_.uniform(operand(0));
    if (!condition) return {};
    return *condition != 0 ? operand(1) : operand(2);
  }

  ValId of_binary() {
    const bool same = operand(0) == operand(1);
    switch (e_.op) {
      case Op::add: return of_add();
      case Op::sub: return of_sub(same);
      case Op::mul: return of_mul();
      case Op::div: return of_div();
      case Op::maximum:
      case Op::minimum: return same ? operand(0) : ValId{};
      case Op::logical_and:
        if (same || is(1, 1)) return operand(0);
        if (is(0, 1)) return operand(1);
        return is(0, 0) || is(1, 0) ? full_like_result(0) : ValId{};
      case Op::logical_or:
        if (same || is(1, 0)) return operand(0);
        if (is(0, 0)) return operand(1);
        return is(0, 1) || is(1, 1) ? full_like_result(1) : ValId{};
      case Op::logical_xor:
        if (same) return full_like_result(0);
        if (is(1, 0)) return operand(0);
        return is(0, 0) ? operand(1) : ValId{};
      case Op::eq:
      case Op::le:
      case Op::ge: return same && !real_ ? full_like_result(1) : ValId{};
      case Op::ne:
      case Op::lt:
      case Op::gt: return same && !real_ ? full_like_result(0) : ValId{};
      default: return {};  // any other: none is known
    }
  }

  ValId of_add() {
    const double nothing = real_ ? -0.0 : 0.0;  // 0 + -0 is 0, so 0 is not neutral
    if (is(1, nothing)) return operand(0);
    if (is(0, nothing)) return operand(1);
    if (negated(1).valid()) return make(Op::sub, {operand(0), negated(1)});
    if (negated(0).valid()) return make(Op::sub, {operand(1), negated(0)});
    return {};
  }

  ValId of_sub(bool same) {
    if (is(1, 0)) return operand(0);
    if (same && !real_) return full_like_result(0);
    if (is(0, real_ ? -0.0 : 0.0)) return make(Op::neg, {operand(1)});
    if (negated(1).valid()) return make(Op::add, {operand(0), negated(1)});
    return {};
  }

  ValId of_mul() {
    for (const std::size_t i : {0, 1}) {
      if (is(i, 1)) return operand(1 - i);
      if (is(i, -1)) return make(Op::neg, {operand(1 - i)});
      if (is(i, 0) && !real_) return full_like_result(0);
    }
    if (negated(0).valid() && negated(1).valid()) return make(Op::mul, {negated(0), negated(1)});
    return {};
  }

  ValId of_div() {
    if (is(1, 1)) return operand(0);
    if (is(1, -1)) return make(Op::neg, {operand(0)});
    if (negated(0).valid() && negated(1).valid()) return make(Op::div, {negated(0), negated(1)});
    const auto divisor = r_.uniform(operand(1));
    if (!divisor) return {};
    const auto factor = exact_reciprocal(*divisor, r_.dtype(operand(0)));
    if (!factor) return {};
    const ValId spread = r_.full(*factor, r_.shape(operand(1)), r_.dtype(operand(0)));
    return make(Op::mul, {operand(0), spread});
  }

  Rewriter& r_;
  const Expr& e_;
  bool real_;
};

/// A greatest, a least or a product over no axes is its operand. (A sum is not: it starts at 0, and
/// 0 + -0 is 0.)
bool drop_reduction(Rewriter& r, const Expr& e) {
  if (e.op != Op::max && e.op != Op::min && e.op != Op::prod) return false;
  if (!e.attr<Axes>("axes").empty()) return false;
  r.replace(e.results[0], e.operands[0]);
  return true;
}

bool fold_rule(Rewriter& r, ExprId id) {
  const Expr e = r.fusion().expr(id);
  if (e.op == Op::extent) return fold_extent(r, e);
  switch (ir::info(e.op).op_class) {
    case ir::OpClass::kElementwise: break;
    case ir::OpClass::kMovement: return fold_movement(r, e);
    case ir::OpClass::kReduction: return drop_reduction(r, e);
    case ir::OpClass::kCreation:
    case ir::OpClass::kOpaque: return false;
  }
  if (fold_elementwise(r, e)) return true;
  const ValId with = Identities(r, e).find();
  if (!with.valid()) return false;
  r.replace(e.results[0], with);
  return true;
}

}  // namespace

bool fold_constants(ir::Fusion& fusion) { return rewrite(fusion, fold_rule); }

}  // namespace segfuse::compiler
