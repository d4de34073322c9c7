#include "compiler/autodiff/rules.h"

#include <fmt/core.h>

#include <algorithm>
#include <limits>

#include "base/half_types.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::Builder;
using ir::Expr;
using ir::Extent;
using ir::Extents;
using ir::Op;
using ir::ValId;
using Axes = std::vector<std::int64_t>;

namespace {

// --- a value in an expression of ops.def
// ---------------------------------------------------------------------------

struct Ex {
  Builder* builder = nullptr;
  ValId id;

  Ex like(double value) const { return {builder, builder->constant_like(value, id)}; }
};

#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  [[maybe_unused]] Ex name(Ex a) { return {a.builder, a.builder->name(a.id)}; }
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  [[maybe_unused]] Ex name(Ex a, Ex b) { return {a.builder, a.builder->name(a.id, b.id)}; }       \
  [[maybe_unused]] Ex name(Ex a, double b) { return name(a, a.like(b)); }                         \
  [[maybe_unused]] Ex name(double a, Ex b) { return name(b.like(a), b); }
#include "segfuse/ops.def"

template <class B>
Ex operator+(Ex a, B b) {
  return add(a, b);
}
template <class B>
Ex operator-(Ex a, B b) {
  return sub(a, b);
}
template <class B>
Ex operator*(Ex a, B b) {
  return mul(a, b);
}
template <class B>
Ex operator/(Ex a, B b) {
  return div(a, b);
}
template <class B>
Ex operator>(Ex a, B b) {
  return gt(a, b);
}
template <class B>
Ex operator>=(Ex a, B b) {
  return ge(a, b);
}
template <class B>
Ex operator<=(Ex a, B b) {
  return le(a, b);
}
template <class B>
Ex operator==(Ex a, B b) {
  return eq(a, b);
}
Ex operator-(double a, Ex b) { return sub(a, b); }
Ex operator-(Ex a) { return neg(a); }
Ex where(Ex condition, Ex a, Ex b) {
  return {a.builder, a.builder->where(condition.id, a.id, b.id)};
}
Ex where(Ex condition, Ex a, double b) { return where(condition, a, a.like(b)); }
Ex where(Ex condition, double a, Ex b) { return where(condition, b.like(a), b); }

const Ex none{};

// --- one expression under differentiation
// --------------------------------------------------------------------------

class Adjoint {
 public:
  Adjoint(Builder& builder, const Expr& expr, const std::vector<ValId>& cotangents,
          const std::vector<bool>& wanted)
      : b_(builder),
        e_(expr),
        cotangents_(cotangents),
        wanted_(wanted),
        result_(expr.operands.size()) {}

  std::vector<ValId> run();

 private:
  Ex value(ValId id) const { return {&b_, id}; }
  Ex operand(std::size_t i) const { return value(e_.operands[i]); }
  Ex result(std::size_t i = 0) const { return value(e_.results[i]); }
  Ex cotangent(std::size_t i = 0) const { return value(cotangents_[i]); }
  /// As it is known now: a requirement may have come after the value.
  Extents shape(std::size_t i) const { return b_.fusion().canonical(b_.val(e_.operands[i]).shape); }
  template <class T>
  const T& attr(std::string_view name) const {
    return e_.attr<T>(name);
  }
  std::size_t axis() const { return static_cast<std::size_t>(attr<std::int64_t>("axis")); }
  void give(std::size_t i, Ex gradient) {
    if (wanted_[i]) result_[i] = gradient.id;
  }

  void elementwise();
  void reduction();
  void movement();
  void opaque();
  Ex expanded(Ex reduced) const;
  void prod();
  void extremum();
  void welford();
  void broadcast();
  ValId repeated_along(ValId id, const Axes& axes);
  ValId sum_of(ValId id, const Axes& axes);
  void permute();
  void slice();
  void pad();
  void concat();
  void gather();
  void matmul();
  void semicrf();
  void scan();
  void sort();
  void attention();
  Ex moved_along(Ex x, bool later, double first) const;
  Ex linear_scan(Ex a, Ex b, bool reverse) const;
  Ex flattened(Ex matrix_stack) const;

  Builder& b_;
  const Expr& e_;
  const std::vector<ValId>& cotangents_;
  const std::vector<bool>& wanted_;
  std::vector<ValId> result_;
};

void Adjoint::elementwise() {
  const Ex g = cotangent();
  [[maybe_unused]] const Ex r = result();
  [[maybe_unused]] const Ex a = operand(0);
  switch (e_.op) {
#define SEGFUSE_UNARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient) \
  case Op::name: give(0, gradient); return;
#define SEGFUSE_BINARY(name, rule, domain, accuracy, extremes, instructions, formula, gradient_a, \
                       gradient_b)                                                                \
  case Op::name: {                                                                                \
    [[maybe_unused]] const Ex b = operand(1);                                                     \
    if (wanted_[0]) give(0, gradient_a);                                                          \
    if (wanted_[1]) give(1, gradient_b);                                                          \
    return;                                                                                       \
  }
#include "segfuse/ops.def"
    case Op::where:
      if (wanted_[1]) give(1, where(a, g, 0.0));
      if (wanted_[2]) give(2, where(a, 0.0, g));
      return;
    case Op::cast: give(0, value(b_.cast(g.id, b_.val(e_.operands[0]).dtype))); return;
    default: throw InternalError(fmt::format("no gradient rule for '{}'", ir::info(e_.op).name));
  }
}

// --- reductions
// -----------------------------------------------------------------------

/// A value over the kept axes, stretched over the operand's shape.
Ex Adjoint::expanded(Ex reduced) const {
  const auto& axes = attr<Axes>("axes");
  Axes kept;
  for (std::size_t i = 0; i < shape(0).size(); ++i)
    if (std::find(axes.begin(), axes.end(), static_cast<std::int64_t>(i)) == axes.end())
      kept.push_back(static_cast<std::int64_t>(i));
  return value(b_.broadcast(reduced.id, kept, shape(0)));
}

void Adjoint::prod() {
  // The product of the others, which is right with zeros too: one zero leaves only its own
  // gradient, two leave none.
  const Ex a = operand(0);
  const auto& axes = attr<Axes>("axes");
  const Ex is_zero = a == 0.0;
  const Ex safe = where(is_zero, a.like(1), a);
  const Ex others = expanded(value(b_.prod(safe.id, axes)));
  const Ex zeros = expanded(value(b_.sum(b_.cast(is_zero.id, b_.val(a.id).dtype), axes)));
  const Ex from_zero = where(zeros == 1.0, others, 0.0);
  const Ex from_other = where(zeros == 0.0, others / safe, 0.0);
  give(0, expanded(cotangent()) * where(is_zero, from_zero, from_other));
}

void Adjoint::extremum() {
  // Equal extrema share the gradient evenly.
  const Ex a = operand(0);
  const Ex hit = value(b_.cast((a == expanded(result())).id, b_.val(a.id).dtype));
  const Ex count = value(b_.sum(hit.id, attr<Axes>("axes")));
  give(0, hit * expanded(cotangent() / count));
}

void Adjoint::welford() {
  const Ex a = operand(0);
  Ex total = none;
  if (cotangents_[0].valid()) {
    Extent count = 1;
    for (const std::int64_t i : attr<Axes>("axes"))
      count = count * shape(0)[static_cast<std::size_t>(i)];
    total = expanded(cotangent(0) / value(b_.extent(count, b_.val(a.id).dtype)));
  }
  if (cotangents_[1].valid()) {
    const Ex spread = (a - expanded(result(0))) * expanded(cotangent(1) * 2.0);
    total = total.id.valid() ? total + spread : spread;
  }
  give(0, total);
}

void Adjoint::reduction() {
  const Ex a = operand(0);
  switch (ir::as<ir::ReductionOp>(e_.op)) {
    case ir::ReductionOp::sum: return give(0, expanded(cotangent()));
    case ir::ReductionOp::prod: return prod();
    case ir::ReductionOp::max:
    case ir::ReductionOp::min: return extremum();
    case ir::ReductionOp::welford: return welford();
    case ir::ReductionOp::logsumexp: {
      // Shares of the rounded result add up to 1 only nearly, or not at all where scores are large.
      const Ex r = expanded(result());
      const Ex power = exp(a - r);
      // In f32 where 16 bits cannot hold the sum.
      const DType dtype = b_.val(a.id).dtype;
      const auto as = [&](Ex x, DType type) { return value(b_.cast(x.id, type)); };
      const Ex wide = is_half(dtype) ? as(power, DType::kF32) : power;
      Ex share = wide / expanded(value(b_.sum(wide.id, attr<Axes>("axes"))));
      if (is_half(dtype)) share = as(share, dtype);
      share = where(r == -std::numeric_limits<double>::infinity(), 0.0, share);
      return give(0, expanded(cotangent()) * share);
    }
    case ir::ReductionOp::argmax: return;
  }
}

// --- movement
// -----------------------------------------------------------------------

/// What a value repeats along `axes`, over the other axes; none if it varies along them.
ValId Adjoint::repeated_along(ValId id, const Axes& axes) {
  const ir::ExprId definition = b_.val(id).definition;
  if (!definition.valid() || b_.fusion().expr(definition).op != Op::broadcast) return {};
  const Expr e = b_.fusion().expr(definition);  // a copy: expressions are added below
  const auto mapped = e.attr<Axes>("axes");
  const Extents from = b_.fusion().canonical(b_.val(e.operands[0]).shape);
  const Extents all = b_.fusion().canonical(b_.val(id).shape);
  Axes dropped;
  Axes to;
  for (std::size_t i = 0; i < mapped.size(); ++i) {
    const auto below = std::lower_bound(axes.begin(), axes.end(), mapped[i]);
    if (below == axes.end() || *below != mapped[i]) {
      to.push_back(mapped[i] - (below - axes.begin()));
    } else if (from[i].is_constant(1)) {
      dropped.push_back(static_cast<std::int64_t>(i));
    } else {
      return {};
    }
  }
  Extents rest;
  for (std::size_t i = 0; i < all.size(); ++i)
    if (!std::binary_search(axes.begin(), axes.end(), static_cast<std::int64_t>(i)))
      rest.push_back(all[i]);
  const ValId one = dropped.empty() ? e.operands[0] : b_.squeeze(e.operands[0], dropped);
  const bool whole = b_.fusion().equal(b_.val(one).shape, rest);
  return whole ? one : b_.broadcast(one, to, rest);
}

/// The sum over sorted `axes`, with factors that do not vary along them taken out of it: fewer
/// products, and the sum need not wait for such a factor. In the gradients of a norm that is the
/// deviation of a row, and a walk over the row is saved. Sums of 16-bit values stay as they are:
/// without their factor they might not fit the type.
ValId Adjoint::sum_of(ValId id, const Axes& axes) {
  const ir::ExprId definition = b_.val(id).definition;
  if (!definition.valid() || is_half(b_.val(id).dtype)) return b_.sum(id, axes);
  const Expr e = b_.fusion().expr(definition);
  if (e.op == Op::neg) return b_.neg(sum_of(e.operands[0], axes));
  if (e.op != Op::mul && e.op != Op::div) return b_.sum(id, axes);
  if (const ValId factor = repeated_along(e.operands[1], axes); factor.valid()) {
    const ValId sum = sum_of(e.operands[0], axes);
    return e.op == Op::mul ? b_.mul(sum, factor) : b_.div(sum, factor);
  }
  if (e.op == Op::div) return b_.sum(id, axes);
  const ValId factor = repeated_along(e.operands[0], axes);
  return factor.valid() ? b_.mul(factor, sum_of(e.operands[1], axes)) : b_.sum(id, axes);
}

void Adjoint::broadcast() {
  const auto& axes = attr<Axes>("axes");
  const auto& target = attr<Extents>("shape");
  Axes summed;
  Axes kept;  // operand axes that remain after the sum
  for (std::size_t to = 0, from = 0; to < target.size(); ++to) {
    const bool mapped = from < axes.size() && axes[from] == static_cast<std::int64_t>(to);
    const bool stretched =
        mapped && shape(0)[from].is_constant(1) && !b_.fusion().equal(target[to], 1);
    if (!mapped || stretched) summed.push_back(static_cast<std::int64_t>(to));
    if (mapped && !stretched) kept.push_back(static_cast<std::int64_t>(from));
    if (mapped) ++from;
  }
  const ValId total = summed.empty() ? cotangents_[0] : sum_of(cotangents_[0], summed);
  give(0, value(kept.size() == shape(0).size() ? total : b_.broadcast(total, kept, shape(0))));
}

void Adjoint::permute() {
  const auto& perm = attr<Axes>("perm");
  Axes inverse(perm.size());
  for (std::size_t i = 0; i < perm.size(); ++i)
    inverse[static_cast<std::size_t>(perm[i])] = static_cast<std::int64_t>(i);
  give(0, value(b_.permute(cotangents_[0], inverse)));
}

void Adjoint::slice() {
  const auto& starts = attr<Extents>("starts");
  const auto& sizes = attr<Extents>("sizes");
  Extents high;
  for (std::size_t i = 0; i < starts.size(); ++i)
    high.push_back(b_.fusion().canonical(shape(0)[i] - starts[i] - sizes[i]));
  give(0, value(b_.pad(cotangents_[0], starts, high)));
}

void Adjoint::pad() { give(0, value(b_.slice(cotangents_[0], attr<Extents>("low"), shape(0)))); }

void Adjoint::concat() {
  Extent start = 0;
  for (std::size_t i = 0; i < e_.operands.size(); ++i) {
    const Extent size = shape(i)[axis()];
    if (wanted_[i])
      give(i, value(b_.slice_axis(cotangents_[0], attr<std::int64_t>("axis"), start, size)));
    start = start + size;
  }
}

void Adjoint::gather() {
  // Element j of the axis gets the cotangents of all positions whose index is j.
  const auto along = attr<std::int64_t>("axis");
  const Extent size = shape(0)[axis()];
  const ValId indices = b_.unsqueeze(e_.operands[1], along + 1);
  const ValId upstream = b_.unsqueeze(cotangents_[0], along + 1);
  Extents line(b_.rank(indices), Extent(1));
  line[axis() + 1] = size;
  const ValId places = b_.broadcast(b_.iota(size, b_.val(indices).dtype), {along + 1}, line);
  const ValId spread = b_.where(b_.eq(indices, places), upstream, b_.constant_like(0, upstream));
  give(0, value(b_.sum(spread, {along})));
}

void Adjoint::movement() {
  const ValId g = cotangents_[0];
  switch (ir::as<ir::MovementOp>(e_.op)) {
    case ir::MovementOp::broadcast: return broadcast();
    case ir::MovementOp::permute: return permute();
    case ir::MovementOp::slice: return slice();
    case ir::MovementOp::pad: return pad();
    case ir::MovementOp::concat: return concat();
    case ir::MovementOp::gather: return gather();
    case ir::MovementOp::reshape: return give(0, value(b_.reshape(g, shape(0))));
    case ir::MovementOp::squeeze: {
      Axes kept;
      const auto& gone = attr<Axes>("axes");
      for (std::size_t i = 0; i < shape(0).size(); ++i)
        if (std::find(gone.begin(), gone.end(), static_cast<std::int64_t>(i)) == gone.end())
          kept.push_back(static_cast<std::int64_t>(i));
      return give(0, value(b_.broadcast(g, kept, shape(0))));
    }
    case ir::MovementOp::take:
      return give(0, value(b_.scatter_add(g, e_.operands[1], attr<std::int64_t>("axis"),
                                          shape(0)[axis()])));
    case ir::MovementOp::scatter_add:
      return give(0, value(b_.take(g, e_.operands[1], attr<std::int64_t>("axis"))));
    case ir::MovementOp::unfold:
      return give(0, value(b_.fold(g, attr<std::int64_t>("axis"), attr<std::int64_t>("stride"),
                                   attr<std::int64_t>("dilation"), shape(0)[axis()])));
    case ir::MovementOp::fold:
      return give(0,
                  value(b_.unfold(g, attr<std::int64_t>("axis"), shape(0)[axis() + 1].constant(),
                                  attr<std::int64_t>("stride"), attr<std::int64_t>("dilation"))));
  }
}

// --- library calls
// -----------------------------------------------------------------------

/// (..., M, N) as one matrix of all rows.
Ex Adjoint::flattened(Ex stack) const {
  const Extents& full = b_.val(stack.id).shape;
  if (full.size() == 2) return stack;
  Extent rows = 1;
  for (std::size_t i = 0; i + 1 < full.size(); ++i) rows = rows * full[i];
  return value(b_.reshape(stack.id, {rows, full.back()}));
}

void Adjoint::matmul() {
  const bool ta = attr<std::int64_t>("transpose_a") != 0;
  const bool tb = attr<std::int64_t>("transpose_b") != 0;
  const Ex g = cotangent();
  if (wanted_[0]) {
    const ValId gradient = b_.matmul(g.id, e_.operands[1], false, !tb);
    give(0, value(ta ? b_.transpose(gradient, -1, -2) : gradient));
  }
  if (!wanted_[1]) return;
  const bool shared_right = shape(1).size() == 2 && shape(0).size() > 2;
  if (!shared_right) {
    const ValId gradient = b_.matmul(e_.operands[0], g.id, !ta, false);
    return give(1, value(tb ? b_.transpose(gradient, -1, -2) : gradient));
  }
  const Ex rows = flattened(ta ? value(b_.transpose(e_.operands[0], -1, -2)) : operand(0));
  const Ex upstream = flattened(g);
  give(1, value(tb ? b_.matmul(upstream.id, rows.id, true, false)
                   : b_.matmul(rows.id, upstream.id, true, false)));
}

void Adjoint::semicrf() {
  std::vector<ValId> operands = e_.operands;
  operands.push_back(cotangents_[0]);
  const std::vector<ValId> all = b_.make_all(Op::semicrf_loss_grad, operands);
  for (std::size_t i = 0; i < all.size(); ++i) give(i, value(all[i]));
}

/// Element t of the scanned axis becomes element t + 1, or t - 1 unless `later`; `first` comes in.
Ex Adjoint::moved_along(Ex x, bool later, double first) const {
  const auto along = attr<std::int64_t>("axis");
  const Extent length = b_.fusion().canonical(b_.val(x.id).shape[axis()]);
  const ValId wide = b_.pad_axis(x.id, along, Extent(later ? 1 : 0), Extent(later ? 0 : 1), first);
  return value(b_.slice_axis(wide, along, Extent(later ? 0 : 1), length));
}

Ex Adjoint::linear_scan(Ex a, Ex b, bool reverse) const {
  return value(
      b_.make(Op::linear_scan, {a.id, b.id}, {attr<std::int64_t>("axis"), std::int64_t{reverse}}));
}

/// What reaches y[t] is g[t] and what y[t + 1] hands back: a linear scan from the other end.
void Adjoint::scan() {
  const bool reverse = attr<std::int64_t>("reverse") != 0;
  const Ex x = operand(0);
  const Ex y = result();
  const Ex g = cotangent();
  const auto before = [&](Ex v, double first) { return moved_along(v, !reverse, first); };
  const auto after = [&](Ex v) { return moved_along(v, reverse, 0); };
  if (e_.op == Op::cumsum)
    return give(0, value(b_.make(Op::cumsum, {g.id},
                                 {attr<std::int64_t>("axis"), std::int64_t{!reverse}})));
  if (e_.op == Op::cumprod) return give(0, linear_scan(after(x), g, !reverse) * before(y, 1));
  if (e_.op == Op::linear_scan) {
    const Ex all = linear_scan(after(x), g, !reverse);
    give(0, all * before(y, 0));
    return give(1, all);
  }
  if (e_.op == Op::cumlogsumexp) {
    const double lowest = -std::numeric_limits<double>::infinity();
    const Ex share = where(y == lowest, 0.0, exp(y - after(y)));
    const Ex all = linear_scan(share, g, !reverse);
    return give(0, where(x == lowest, 0.0, all * exp(x - y)));
  }
  // A maximum or minimum: from where it is found to where the next one is.
  const Ex old = before(y, 0);
  const Ex kept = e_.op == Op::cummax ? x <= old : x >= old;
  const Ex ones = value(b_.full(1, b_.val(y.id).shape, b_.val(y.id).dtype));
  const Ex stays = before(ones, 0) * where(kept, ones, 0.0);  // the first one is always found
  give(0, where(stays > 0.0, 0.0, linear_scan(after(stays), g, !reverse)));
}

/// The cotangents go back to where the elements were.
void Adjoint::sort() {
  const auto along = attr<std::int64_t>("axis");
  const ValId back = b_.make_all(Op::sort, {e_.results[1]}, {along, std::int64_t{0}})[1];
  give(0, value(b_.gather(cotangents_[0], back, along)));
}

/// The bias is no concern here: where it is wanted, the attention was written out (vjp).
void Adjoint::attention() {
  const bool has_result = cotangents_[0].valid();
  const ValId g = has_result ? cotangents_[0]
                             : b_.full(0, b_.val(e_.results[0]).shape, b_.val(e_.results[0]).dtype);
  const DType sums = b_.val(e_.results[1]).dtype;
  Ex rows = value(b_.sum(b_.mul(b_.cast(g, sums), b_.cast(e_.results[0], sums)), {-1}));
  if (cotangents_[1].valid()) rows = rows - value(cotangents_[1]);
  std::vector<ValId> operands = e_.operands;
  operands.insert(operands.end(), {e_.results[1], g, rows.id});
  const std::vector<ValId> all = b_.make_all(Op::attention_grad, operands, e_.attrs);
  for (std::size_t i = 0; i < 3; ++i) give(i, value(all[i]));
}

void Adjoint::opaque() {
  switch (ir::as<ir::OpaqueOp>(e_.op)) {
    case ir::OpaqueOp::matmul: return matmul();
    case ir::OpaqueOp::semicrf_loss: return semicrf();
    case ir::OpaqueOp::cumsum:
    case ir::OpaqueOp::cumprod:
    case ir::OpaqueOp::cummax:
    case ir::OpaqueOp::cummin:
    case ir::OpaqueOp::cumlogsumexp:
    case ir::OpaqueOp::linear_scan: return scan();
    case ir::OpaqueOp::scan: break;  // has rules of its own
    case ir::OpaqueOp::sort: return sort();
    case ir::OpaqueOp::attention: return attention();
    case ir::OpaqueOp::attention_grad: break;  // products and sums by now
    case ir::OpaqueOp::semicrf_loss_grad: break;
  }
  throw UsageError(fmt::format(
      "'{}' cannot be differentiated again; only first derivatives of the semi-Markov loss exist",
      ir::info(e_.op).name));
}

std::vector<ValId> Adjoint::run() {
  switch (ir::info(e_.op).op_class) {
    case ir::OpClass::kElementwise: elementwise(); break;
    case ir::OpClass::kReduction: reduction(); break;
    case ir::OpClass::kMovement: movement(); break;
    case ir::OpClass::kCreation: break;
    case ir::OpClass::kOpaque: opaque(); break;
  }
  return result_;
}

}  // namespace

std::vector<ValId> operand_cotangents(Builder& builder, ir::ExprId id,
                                      const std::vector<ValId>& result_cotangents,
                                      const std::vector<bool>& wanted) {
  if (builder.fusion().expr(id).op == Op::scan)
    return scan_cotangents(builder, id, result_cotangents, wanted);
  const Expr expr =
      builder.fusion().expr(id);  // a copy: storage moves while the rule adds expressions
  return Adjoint(builder, expr, result_cotangents, wanted).run();
}

}  // namespace segfuse::compiler
