#include "learn/model/products.h"

#include <set>
#include <vector>

#include "ir/builder.h"

namespace segfuse::learn {
namespace {

using ir::Expr;
using ir::Op;
using ir::ValId;

/// Whether the operation has one operand and gives its elements, perhaps several times, and zeros.
bool only_moves(const Expr& e) {
  switch (e.op) {
    case Op::permute:
    case Op::broadcast:
    case Op::squeeze:
    case Op::reshape:
    case Op::unfold: return true;
    case Op::pad: return e.attr<double>("value") == 0;
    default: return false;  // any other: its result is cast
  }
}

ValId rounded(ir::Fusion& fusion, ValId val) {
  if (const ir::ExprId definition = fusion.val(val).definition; definition.valid()) {
    const Expr e = fusion.expr(definition);  // a copy: building moves storage
    if (only_moves(e))
      return fusion.result(fusion.add_expr(e.op, {rounded(fusion, e.operands[0])}, e.attrs));
  }
  return ir::Builder(fusion).cast(val, DType::kBF16);
}

/// Whether the result is a sum of the operands' elements, perhaps with factors.
bool adds(const Expr& e) {
  switch (e.op) {
    case Op::neg:
    case Op::add:
    case Op::sub:
    case Op::mul:
    case Op::div:
    case Op::where:
    case Op::cast: return true;
    default:  // any other: it adds if it moves, and else the products behind it are rounded
      return ir::info(e.op).op_class == ir::OpClass::kMovement;
  }
}

/// What a value is a sum of, as far as it is made of f32 values.
std::set<ir::ExprId> summands_of(const ir::Fusion& fusion, ValId root) {
  std::set<ir::ExprId> found;
  std::vector<ValId> open{root};
  while (!open.empty()) {
    const ir::Val& val = fusion.val(open.back());
    open.pop_back();
    if (!val.definition.valid() || val.dtype != DType::kF32) continue;
    if (!found.insert(val.definition).second) continue;
    const Expr& e = fusion.expr(val.definition);
    if (adds(e)) open.insert(open.end(), e.operands.begin(), e.operands.end());
  }
  return found;
}

}  // namespace

ValId round_products(ir::Fusion& fusion, ValId root, bool of_scores) {
  std::set<ir::ExprId> exact;
  if (of_scores) exact = summands_of(fusion, root);
  for (const ir::ExprId id : fusion.sorted_exprs()) {
    const Expr e = fusion.expr(id);
    if (exact.contains(id)) continue;
    if ((e.op != Op::matmul && e.op != Op::attention) ||
        fusion.val(e.results[0]).dtype != DType::kF32)
      continue;
    // Queries, keys and values; the bias and the mask of attention stay.
    const std::size_t rounds = e.op == Op::matmul ? 2 : 3;
    std::vector<ValId> operands = e.operands;
    for (std::size_t i = 0; i < rounds; ++i) operands[i] = rounded(fusion, operands[i]);
    const ir::ExprId product = fusion.add_expr(e.op, operands, e.attrs);
    for (std::size_t i = 0; i < e.results.size(); ++i) {
      const ValId result = ir::Builder(fusion).cast(fusion.result(product, i), DType::kF32);
      fusion.redirect_uses(e.results[i], result);
      if (root == e.results[i]) root = result;
    }
    fusion.erase(id);
  }
  return root;
}

}  // namespace segfuse::learn
