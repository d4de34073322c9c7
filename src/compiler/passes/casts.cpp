#include "compiler/passes/passes.h"
#include "compiler/passes/rewrite.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Op;
using ir::ValId;

namespace {

/// Whether every value of `from` is one of `to`.
bool holds_all(DType to, DType from) {
  if (to == from || from == DType::kBool) return true;
  switch (from) {
    case DType::kF16:
    case DType::kBF16: return to == DType::kF32 || to == DType::kF64;
    case DType::kF32: return to == DType::kF64;
    case DType::kI32: return to == DType::kI64 || to == DType::kF64;
    default: return false;
  }
}

bool casts_rule(Rewriter& r, ExprId id) {
  const Expr e = r.fusion().expr(id);
  if (e.op != Op::cast) return false;
  const DType target = e.attr<DType>("dtype");
  if (r.dtype(e.operands[0]) == target) {
    r.replace(e.results[0], e.operands[0]);
    return true;
  }
  const Expr* inner = r.is(e.operands[0], Op::cast);
  if (!inner) return false;
  const ValId source = inner->operands[0];
  if (!holds_all(r.dtype(e.operands[0]), r.dtype(source))) return false;
  r.replace(e.results[0], r.build().cast(source, target));
  return true;
}

}  // namespace

bool clean_casts(ir::Fusion& fusion) { return rewrite(fusion, casts_rule); }

}  // namespace segfuse::compiler
