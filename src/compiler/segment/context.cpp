#include "compiler/segment/context.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "base/check.h"
#include "compiler/op_facts.h"

namespace segfuse::compiler {

namespace {
constexpr int kDeepestFree = 128;  // expressions one after the other
/// Of a value; sums of many stay in 64 bits.
constexpr std::int64_t kMaxElements = std::int64_t{1} << 50;
}  // namespace

using ir::Expr;
using ir::ExprId;
using ir::Op;
using ir::OpClass;
using ir::ValId;

bool runs_alone(Op op) { return ir::info(op).op_class == OpClass::kOpaque || ir::adds(op); }

ValId storage_root(const ir::Fusion& fusion, ValId val) {
  while (true) {
    const ExprId definition = fusion.val(val).definition;
    if (!definition.valid()) return val;
    const Expr& e = fusion.expr(definition);
    if (e.op != Op::reshape && e.op != Op::squeeze && e.op != Op::broadcast) return val;
    val = e.operands[0];
  }
}

SegmentContext::SegmentContext(const ir::Fusion& fusion, const SizeHints& hints)
    : fusion_(fusion), hints_(hints) {
  grow();
}

void SegmentContext::grow() {
  find_order();
  SEGFUSE_CHECK(order_.size() == fusion_.exprs().size(), "'{}' has no dead code", fusion_.name());
  const std::size_t vals = fusion_.storage().vals.size();
  const std::size_t exprs = fusion_.storage().exprs.size();
  output_.assign(vals, false);
  for (const ir::Output& output : fusion_.outputs()) output_[output.val.index] = true;
  bytes_.assign(vals, 0);
  for (const ValId id : fusion_.vals())
    bytes_[id.index] = elements(id) * static_cast<std::int64_t>(size_of(fusion_.val(id).dtype));
  free_.assign(exprs, false);
  std::vector<int> depth(exprs, 0);  // of free ones
  for (const ExprId id : order_) {
    depth[id.index] = find_free(fusion_.expr(id), depth);
    free_[id.index] = depth[id.index] > 0;
  }
  written_.assign(exprs, false);
  for (const ExprId id : order_) {
    if (!free_[id.index]) continue;
    for (const ValId result : fusion_.expr(id).results) {
      const auto& uses = fusion_.val(result).uses;
      if (output_[result.index] || std::any_of(uses.begin(), uses.end(), [&](ExprId user) {
            return runs_alone(fusion_.expr(user).op);
          }))
        written_[id.index] = true;
    }
  }
  member_.resize(exprs, 0);
  seen_.resize(vals, 0);
  slots_.resize(vals, -1);
}

void SegmentContext::add_copy(ExprId copy, ExprId original) {
  const std::size_t vals = fusion_.storage().vals.size();
  const std::size_t exprs = fusion_.storage().exprs.size();
  for (std::vector<bool>* flags : {&free_, &written_}) flags->resize(exprs, false);
  rank_.resize(exprs, 0);
  rank_[copy.index] = rank_[original.index];
  output_.resize(vals, false);
  bytes_.resize(vals, 0);
  bytes_[fusion_.result(copy).index] = bytes_[fusion_.result(original).index];
  member_.resize(exprs, 0);
  seen_.resize(vals, 0);
  slots_.resize(vals, -1);
}

/// How many expressions are one after the other up to this one; 0 if it is not free.
int SegmentContext::find_free(const Expr& expr, const std::vector<int>& depth) const {
  switch (ir::info(expr.op).op_class) {
    case OpClass::kElementwise: break;
    case OpClass::kCreation:
      if (costs_more_than_a_load(expr.op)) return 0;
      break;
    case OpClass::kMovement:
      if (expr.op != Op::broadcast && expr.op != Op::squeeze && expr.op != Op::permute &&
          expr.op != Op::reshape)
        return 0;
      break;
    case OpClass::kReduction:
    case OpClass::kOpaque: return 0;
  }
  int deepest = 0;
  for (const ValId operand : expr.operands) {
    const ir::Val& val = fusion_.val(operand);
    if (val.definition.valid() ? depth[val.definition.index] == 0 : !val.shape.empty()) return 0;
    if (val.definition.valid()) deepest = std::max(deepest, depth[val.definition.index]);
  }
  return deepest < kDeepestFree ? deepest + 1 : 0;
}

/// Depth first from the outputs, operands before users.
void SegmentContext::find_order() {
  order_.clear();
  rank_.assign(fusion_.storage().exprs.size(), 0);
  std::vector<bool> seen(rank_.size(), false);
  struct Frame {
    ExprId id;
    std::size_t next;
  };
  std::vector<Frame> stack;
  auto visit = [&](ValId val) {
    const ExprId id = fusion_.val(val).definition;
    if (!id.valid() || seen[id.index]) return;
    seen[id.index] = true;
    stack.push_back({id, 0});
  };
  for (const ir::Output& output : fusion_.outputs()) {
    visit(output.val);
    while (!stack.empty()) {
      Frame& top = stack.back();
      const Expr& expr = fusion_.expr(top.id);
      if (top.next < expr.operands.size()) {
        visit(expr.operands[top.next++]);
        continue;
      }
      rank_[top.id.index] = static_cast<std::uint32_t>(order_.size());
      order_.push_back(top.id);
      stack.pop_back();
    }
  }
}

std::int64_t SegmentContext::value_of(const ir::Extent& extent) const {
  const ir::IrStorage& ir = fusion_.storage();
  // Saturates: with the numbers that are assumed for symbols, ten axes have more elements than
  // 64 bits can count.
  auto within = [](double size) {
    return std::clamp(size, -double(kMaxElements), double(kMaxElements));
  };
  auto number = [&](auto& self, const ir::Extent& size) -> double {
    const ir::Extent known = fusion_.canonical(size);
    double sum = 0;
    for (const ir::Extent::Term& term : known.terms()) {
      double product = within(static_cast<double>(term.coefficient));
      for (const ir::SymbolId id : term.factors) {
        const ir::Symbol& symbol = ir.symbols[id.index];
        const auto found = hints_.symbols.find(symbol.name);
        const std::int64_t hint = found == hints_.symbols.end() ? hints_.other : found->second;
        product = within(product * (symbol.derived
                                        ? std::floor(self(self, symbol.derived->numerator) /
                                                     static_cast<double>(symbol.derived->divisor))
                                        : static_cast<double>(hint)));
      }
      sum += product;
    }
    return std::max(0.0, within(sum));
  };
  return static_cast<std::int64_t>(number(number, extent));
}

std::int64_t SegmentContext::elements(ValId id) const {
  std::int64_t count = 1;
  for (const ir::Extent& extent : fusion_.val(id).shape) {
    const std::int64_t size = value_of(extent);
    count = size > 0 && count > kMaxElements / size ? kMaxElements : count * size;
  }
  return count;
}

bool SegmentContext::reads(ExprId user, ValId val) const {
  return !is_free(val) || runs_alone(fusion_.expr(user).op);
}

/// The values in memory that `val` is made of, if `user` computes it for itself.
void SegmentContext::add_leaves(ExprId user, ValId val, std::vector<ValId>& inputs) const {
  std::vector<ValId> open{val};
  while (!open.empty()) {
    const ValId next = open.back();
    open.pop_back();
    if (seen_[next.index] == call_) continue;
    seen_[next.index] = call_;
    if (reads(user, next)) {
      inputs.push_back(next);
      continue;
    }
    const auto& operands = fusion_.expr(fusion_.val(next).definition).operands;
    open.insert(open.end(), operands.begin(), operands.end());
  }
}

Boundary SegmentContext::boundary(std::span<const ExprId> exprs) const {
  ++call_;
  for (const ExprId id : exprs) member_[id.index] = call_;
  Boundary result;
  for (const ExprId id : exprs) {
    const Expr& expr = fusion_.expr(id);
    for (const ValId operand : expr.operands) {
      const ExprId definition = fusion_.val(operand).definition;
      if (definition.valid() && member_[definition.index] == call_) continue;
      add_leaves(id, operand, result.inputs);
    }
    for (const ValId value : expr.results) {
      const auto& uses = fusion_.val(value).uses;
      const bool needed =
          output_[value.index] || std::any_of(uses.begin(), uses.end(), [&](ExprId user) {
            return member_[user.index] != call_ && reads(user, value);
          });
      if (needed) result.outputs.push_back(value);
    }
  }
  std::sort(result.inputs.begin(), result.inputs.end());
  std::sort(result.outputs.begin(), result.outputs.end());
  return result;
}

}  // namespace segfuse::compiler
