#include "compiler/attention.h"
#include "ir/attention.h"
#include "ir/builder.h"

namespace segfuse::compiler {
namespace {

using ir::Builder;
using ir::Expr;
using ir::ExprId;
using ir::Extents;
using ir::Op;
using ir::ValId;

class Writer {
 public:
  Writer(ir::Fusion& fusion, ExprId id)
      : b_(fusion),
        e_(fusion.expr(id)),
        parts_(ir::attention_operands(fusion, e_.op, e_.operands)),
        products_(fusion.val(e_.operands[0]).dtype),
        sums_(ir::attention_sums(products_)) {}

  std::vector<ValId> run() {
    const ValId q = e_.operands[0];
    const ValId k = e_.operands[1];
    const ValId v = e_.operands[2];
    const ValId s = scores();
    // Gradients take the rounded weights, so that no others are kept for them.
    const ValId p = b_.cast(b_.cast(b_.softmax(s, -1), products_), sums_);
    if (e_.op == Op::attention) return {multiply(p, v), b_.logsumexp(s, {-1})};
    const ValId g = e_.operands[parts_.rest + 1];
    const ValId rows = b_.unsqueeze(e_.operands[parts_.rest + 2], -1);
    ValId ds = b_.mul(p, b_.sub(product(g, v, false, true), rows));
    if (seen_.valid()) ds = b_.where(seen_, ds, b_.constant_like(0, ds));
    ds = scaled(ds);
    return {multiply(ds, k), multiply(ds, q, true, false), multiply(p, g, true, false)};
  }

 private:
  ValId multiply(ValId a, ValId b, bool transpose_a = false, bool transpose_b = false) {
    return b_.matmul(b_.cast(a, products_), b_.cast(b, products_), transpose_a, transpose_b);
  }
  ValId product(ValId a, ValId b, bool transpose_a = false, bool transpose_b = false) {
    return b_.cast(multiply(a, b, transpose_a, transpose_b), sums_);
  }
  ValId scaled(ValId s) {
    const double scale = e_.attr<double>("scale");
    return scale == 1 ? s : b_.mul(s, b_.constant_like(scale, s));
  }
  ValId scores() {
    ValId s = scaled(product(e_.operands[0], e_.operands[1], false, true));
    if (parts_.bias) s = b_.add(s, e_.operands[*parts_.bias]);
    if (parts_.mask) seen_ = e_.operands[*parts_.mask];
    const auto& ahead = e_.attr<Extents>("ahead");
    if (!ahead.empty()) {
      const Extents shape = b_.val(s).shape;
      const ValId rows = b_.add(b_.unsqueeze(b_.iota(shape[shape.size() - 2]), 1),
                                b_.extent(ahead[0], DType::kI64));
      const ValId columns = b_.add(b_.iota(shape.back()), b_.extent(ahead[1], DType::kI64));
      const ValId band = b_.le(columns, rows);
      seen_ = seen_.valid() ? b_.logical_and(seen_, band) : band;
    }
    return seen_.valid() ? b_.where(seen_, s, b_.constant_like(e_.attr<double>("fill"), s)) : s;
  }

  Builder b_;
  const Expr e_;  // a copy: building moves storage
  ir::AttentionOperands parts_;
  DType products_;  ///< of their operands and results
  DType sums_;
  ValId seen_;
};

bool is_attention(const Expr& e) { return e.op == Op::attention || e.op == Op::attention_grad; }

template <class Wanted>
bool write_out(ir::Fusion& fusion, const Wanted& wanted) {
  Replaced replaced;
  for (const ExprId id : fusion.live_exprs())
    if (is_attention(fusion.expr(id)) && wanted(fusion.expr(id)))
      write_attention_out(fusion, id, replaced);
  return !replaced.empty();
}

}  // namespace

void write_attention_out(ir::Fusion& fusion, ExprId attention, Replaced& replaced) {
  const std::vector<ValId> old = fusion.expr(attention).results;
  const std::vector<ValId> with = Writer(fusion, attention).run();
  for (std::size_t i = 0; i < old.size(); ++i) {
    ValId result = with[i];
    const Extents shape = fusion.val(old[i]).shape;
    if (fusion.val(result).shape != shape) {
      std::vector<std::int64_t> axes;
      for (std::size_t a = 0; a < shape.size(); ++a) axes.push_back(static_cast<std::int64_t>(a));
      result = Builder(fusion).broadcast(result, axes, shape);
    }
    fusion.redirect_uses(old[i], result);
    replaced[old[i]] = result;
  }
}

bool write_attention_out(ir::Fusion& fusion) {
  return write_out(fusion, [](const Expr&) { return true; });
}

bool write_large_attention_out(ir::Fusion& fusion) {
  return write_out(fusion, [&](const Expr& e) {
    const Extents& q = fusion.val(e.operands[0]).shape;
    const std::int64_t most =
        fusion.val(e.operands[0]).dtype == DType::kBF16 ? kMaxGpuAttention16 : kMaxGpuAttention;
    const auto small = [&](const ir::Extent& size) {
      return size.is_constant() && size.constant() <= most;
    };
    return q.size() > kMaxGpuAttentionAxes || !small(fusion.canonical(q).back()) ||
           !small(fusion.canonical(fusion.val(e.operands[2]).shape).back());
  });
}

}  // namespace segfuse::compiler
