#include <algorithm>
#include <limits>

#include "compiler/passes/passes.h"
#include "compiler/passes/rewrite.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Extents;
using ir::Op;
using ir::ValId;

namespace {

bool is_empty(const Extents& shape) {
  return std::any_of(shape.begin(), shape.end(), [](const auto& e) { return e.is_constant(0); });
}

/// What a reduction gives for no elements; nothing where that is an error or no constant can hold
/// it.
std::optional<double> value_of_nothing(Op op, DType dtype) {
  const ir::Monoid first = ir::info(op).walks[0][0];
  if (first == ir::Monoid::kArgmax || (first == ir::Monoid::kMin && dtype == DType::kI64))
    return {};
  return ir::identity(first, dtype);
}

/// The constant that all results of an expression are, if there is one.
std::optional<double> constant_of(Rewriter& r, const Expr& e) {
  if (std::all_of(e.results.begin(), e.results.end(),
                  [&](ValId v) { return is_empty(r.shape(v)); }))
    return 0;
  if (e.operands.empty() || !is_empty(r.shape(e.operands[0]))) return {};
  if (ir::info(e.op).op_class == ir::OpClass::kReduction)
    return value_of_nothing(e.op, r.dtype(e.operands[0]));
  if (e.op == Op::pad) return e.attr<double>("value");
  if (ir::adds(e.op) || e.op == Op::matmul) return 0;
  return {};
}

bool drop_empty_parts(Rewriter& r, ExprId id) {
  const Expr e = r.fusion().expr(id);
  const auto axis = static_cast<std::size_t>(e.attr<std::int64_t>("axis"));
  std::vector<ValId> parts;
  for (const ValId part : e.operands)
    if (!r.shape(part)[axis].is_constant(0)) parts.push_back(part);
  if (parts.size() == e.operands.size() || parts.empty()) return false;
  r.replace(e.results[0], parts.size() == 1
                              ? parts[0]
                              : r.build().concat(parts, static_cast<std::int64_t>(axis)));
  return true;
}

bool empty_rule(Rewriter& r, ExprId id) {
  const Expr e = r.fusion().expr(id);
  if (ir::info(e.op).op_class == ir::OpClass::kOpaque && e.op != Op::matmul) return false;
  if (r.uniform(e.results[0])) return false;
  if (const auto value = constant_of(r, e)) {
    for (const ValId result : e.results)  // the last live one takes the expression with it
      if (r.fusion().contains(result))
        r.replace(result, r.full(*value, r.shape(result), r.dtype(result)));
    return true;
  }
  return e.op == Op::concat && drop_empty_parts(r, id);
}

}  // namespace

bool remove_empty_tensors(ir::Fusion& fusion) { return rewrite(fusion, empty_rule); }

}  // namespace segfuse::compiler
