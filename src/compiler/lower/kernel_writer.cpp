#include "compiler/lower/kernel_writer.h"

#include <fmt/core.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Extent;
using ir::Op;
using loop::Index;
using loop::ValueId;
using Ints = std::vector<std::int64_t>;

KernelWriter::KernelWriter(const GroupAnalysis& group, GroupKernel& out)
    : emitter(group.context, out),
      group_(group),
      states_(group.reductions.size()),
      finished_(group.reductions.size()) {
  emitter.reduced = [this](ExprId expr, std::size_t which, const Coordinates&) {
    const auto& all = group_.reductions;
    const bool walked = std::any_of(all.begin(), all.end(),
                                    [&](const SimpleReduction& r) { return r.expr == expr; });
    return walked ? result(expr, which) : single(expr, which);
  };
}

std::size_t KernelWriter::find(ExprId expr, int part) const {
  for (std::size_t i = 0; i < group_.reductions.size(); ++i)
    if (group_.reductions[i].expr == expr && group_.reductions[i].part == part) return i;
  throw InternalError(fmt::format("expression {} has no reduction {}", expr.index, part));
}

const std::vector<ValueId>& KernelWriter::finished(std::size_t number) const {
  SEGFUSE_CHECK(!finished_[number].empty(), "reduction {} is used before it is finished", number);
  return finished_[number];
}

Extent KernelWriter::count(ExprId expr) const {
  const Expr& e = group_.fusion.expr(expr);
  Extent all = 1;
  for (const std::int64_t axis : e.attr<Ints>("axes"))
    all = all * group_.fusion.val(e.operands[0]).shape[static_cast<std::size_t>(axis)];
  return group_.fusion.canonical(all);
}

/// Sum / number of elements; 0 of none.
ValueId KernelWriter::mean(ExprId expr) {
  const std::size_t number = find(expr, 0);
  const DType dtype = group_.reductions[number].dtype;
  const ValueId elements =
      emitter.compute(Op::maximum, dtype,
                      {emitter.from_index(dtype, Index(count(expr))), emitter.constant(dtype, 1)});
  return emitter.compute(Op::div, dtype, {finished(number)[0], elements});
}

/// The maximum of a logsumexp, or 0 if it is not finite.
ValueId KernelWriter::largest(ExprId expr) {
  const std::size_t number = find(expr, 0);
  const DType dtype = group_.reductions[number].dtype;
  const ValueId value = finished(number)[0];
  return emitter.compute(
      Op::where, dtype,
      {emitter.compute(Op::is_finite, DType::kBool, {value}), value, emitter.constant(dtype, 0)});
}

ValueId KernelWriter::operand(std::size_t number) {
  const SimpleReduction& r = group_.reductions[number];
  const Expr& expr = group_.fusion.expr(r.expr);
  const ir::ValId val = expr.operands[0];
  const ValueId value =
      emitter.cast(emitter.eval(val, group_.coordinates_of(val, domain_at)), r.dtype);
  if (r.part == 0) return value;
  if (expr.op == Op::logsumexp)
    return emitter.compute(Op::exp, r.dtype,
                           {emitter.compute(Op::sub, r.dtype, {value, largest(r.expr)})});
  const ValueId deviation = emitter.compute(Op::sub, r.dtype, {value, mean(r.expr)});
  return r.part == 1 ? deviation : emitter.compute(Op::square, r.dtype, {deviation});
}

Index KernelWriter::position(std::size_t number) const {
  const SimpleReduction& r = group_.reductions[number];
  if (r.op != ir::Monoid::kArgmax) return 0;
  const Expr& expr = group_.fusion.expr(r.expr);
  const auto axis = expr.attr<Ints>("axes")[0];
  return group_.coordinates_of(expr.operands[0], domain_at)[static_cast<std::size_t>(axis)];
}

/// A row in registers gives each lane so few elements that plain sums are as good: what rounding
/// adds grows with the terms of a lane, and lanes are joined in a tree.
bool KernelWriter::few_to_a_lane() const {
  const Schedule& schedule = emitter.schedule();
  return schedule.hold == Hold::kRegister && schedule.row <= 64 * schedule.threads;
}

void KernelWriter::begin(std::size_t number) {
  const SimpleReduction& r = group_.reductions[number];
  auto& all = emitter.kernel().reductions;
  states_[number] = {static_cast<std::uint32_t>(all.size())};
  all.push_back(
      {r.op, r.dtype, r.op == ir::Monoid::kSum && r.dtype == DType::kF32 && !few_to_a_lane()});
  emitter.emit({loop::Begin{states_[number]}});
}

void KernelWriter::accumulate(std::size_t number) {
  accumulate(number, operand(number), position(number));
}

void KernelWriter::accumulate(std::size_t number, ValueId value, const Index& position) {
  emitter.emit({loop::Accumulate{states_[number], value, position}});
}

void KernelWriter::finish(std::size_t number) {
  const SimpleReduction& r = group_.reductions[number];
  std::vector<ValueId> results{emitter.new_value(r.dtype, emitter.depth())};
  if (r.op == ir::Monoid::kArgmax)
    results.push_back(emitter.new_value(DType::kI64, emitter.depth()));
  finished_[number] = results;
  emitter.emit({loop::Finish{states_[number], std::move(results)}});
}

void KernelWriter::assume(std::size_t number) {
  const SimpleReduction& r = group_.reductions[number];
  finished_[number] = {emitter.constant(r.dtype, 0)};
  if (r.op == ir::Monoid::kArgmax) finished_[number].push_back(emitter.constant(DType::kI64, 0));
}

/// A reduction over axes of size 1.
ValueId KernelWriter::single(ExprId expr, std::size_t which) {
  const Expr& e = group_.fusion.expr(expr);
  const DType dtype = emitter.carried(group_.fusion.val(e.results[which]).dtype);
  if (e.op == Op::argmax) return emitter.constant(dtype, 0);
  const ValueId value =
      emitter.eval(e.operands[0], group_.coordinates_of(e.operands[0], domain_at));
  if (which == 0) return emitter.cast(value, dtype);
  const ValueId deviation = emitter.compute(Op::sub, emitter.kernel().dtype(value), {value, value});
  return emitter.cast(deviation, dtype);
}

ValueId KernelWriter::result(ExprId expr, std::size_t which) {
  const Expr& e = group_.fusion.expr(expr);
  const DType dtype = emitter.carried(group_.fusion.val(e.results[which]).dtype);
  const std::size_t first = find(expr, 0);
  const DType state = group_.reductions[first].dtype;
  if (e.op == Op::argmax) return emitter.cast(finished(first)[1], dtype);
  if (e.op == Op::logsumexp) {
    const ValueId sum = finished(find(expr, 1))[0];
    const ValueId log = emitter.compute(Op::log, state, {sum});
    return emitter.cast(emitter.compute(Op::add, state, {largest(expr), log}), dtype);
  }
  if (e.op != Op::welford) return emitter.cast(finished(first)[0], dtype);
  if (which == 0) return emitter.cast(mean(expr), dtype);
  // The deviations' own sum takes out what rounding the mean put in.
  const ValueId sum = finished(find(expr, 1))[0];
  const ValueId squares = finished(find(expr, 2))[0];
  const ValueId elements =
      emitter.compute(Op::maximum, state,
                      {emitter.from_index(state, Index(count(expr))), emitter.constant(state, 1)});
  const ValueId excess =
      emitter.compute(Op::div, state, {emitter.compute(Op::square, state, {sum}), elements});
  const ValueId corrected = emitter.compute(Op::sub, state, {squares, excess});
  return emitter.cast(emitter.compute(Op::maximum, state, {corrected, emitter.constant(state, 0)}),
                      dtype);
}

void KernelWriter::store(const GroupResult& result, std::vector<loop::Within> when) {
  const ir::ValId memory = group_.context.memory_of(result.output);
  if (memory != result.output)
    for (const GroupResult& other : group_.results)
      if (other.walk == result.walk && other.column == result.column &&
          group_.dependencies_of(other.root, true).contains(memory))
        (void)emitter.eval(other.root, group_.coordinates_of(other.root, domain_at));
  const ValueId value = emitter.eval(result.root, group_.coordinates_of(result.root, domain_at));
  const Coordinates to = group_.output_coordinates(emitter.indices(), result, domain_at);
  const ir::Extents shape = group_.context.shape_of(result.output);
  emitter.store(emitter.buffer_of(result.output, true), linearize(emitter.indices(), to, shape),
                value, std::move(when));
}

}  // namespace segfuse::compiler
