#include "compiler/autodiff.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>

#include "compiler/attention.h"
#include "compiler/autodiff/padded.h"
#include "compiler/autodiff/rules.h"
#include "ir/builder.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::ExprId;
using ir::ValId;

namespace {

/// One differentiation: the adjoint of every value that lies between `wrt` and the outputs.
class Reverse {
 public:
  Reverse(ir::Fusion& fusion, std::span<const ValId> wrt)
      : fusion_(fusion),
        builder_(fusion),
        active_(fusion.storage().vals.size(), false),
        adjoint_(active_.size()) {
    for (const ValId id : wrt) active_[id.index] = is_float(fusion.val(id).dtype);
    order_ = fusion.sorted_exprs();
    for (const ExprId id : order_) {
      const ir::Expr& e = fusion.expr(id);
      const bool reached = std::any_of(e.operands.begin(), e.operands.end(),
                                       [&](ValId operand) { return active_[operand.index]; });
      for (const ValId result : e.results)
        if (reached && is_float(fusion.val(result).dtype)) active_[result.index] = true;
    }
  }

  void seed(ValId output, ValId cotangent) { accumulate(output, cotangent); }

  void sweep() {
    for (auto id = order_.rbegin(); id != order_.rend(); ++id) visit(*id);
  }

  ValId adjoint_or_zero(ValId id) {
    if (const ValId known = adjoint(id); known.valid()) return known;
    return builder_.full(0, fusion_.val(id).shape, fusion_.val(id).dtype);
  }

 private:
  void accumulate(ValId id, ValId cotangent) {
    if (!cotangent.valid() || !active_[id.index]) return;
    if (is_padded(fusion_, cotangent)) {
      padded_[id].push_back(cotangent);
      return;
    }
    add(id, cotangent);
  }

  void add(ValId id, ValId cotangent) {
    ValId& sum = adjoint_[id.index];
    sum = sum.valid() ? builder_.add(sum, cotangent) : cotangent;
  }

  /// Once all users of the value have been visited.
  ValId adjoint(ValId id) {
    if (const auto padded = padded_.extract(id)) add(id, sum_of_padded(builder_, padded.mapped()));
    return adjoint_[id.index];
  }

  void visit(ExprId id) {
    const ir::Expr e = fusion_.expr(id);  // a copy: the rules add expressions
    std::vector<ValId> from_results;
    for (const ValId result : e.results) from_results.push_back(adjoint(result));
    if (std::none_of(from_results.begin(), from_results.end(), [](ValId v) { return v.valid(); }))
      return;
    std::vector<bool> wanted;
    for (const ValId operand : e.operands) wanted.push_back(active_[operand.index]);
    if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) return;
    const std::vector<ValId> to_operands = operand_cotangents(builder_, id, from_results, wanted);
    for (std::size_t i = 0; i < e.operands.size(); ++i) accumulate(e.operands[i], to_operands[i]);
  }

  ir::Fusion& fusion_;
  ir::Builder builder_;
  std::vector<bool> active_;
  std::vector<ValId> adjoint_;
  std::map<ValId, std::vector<ValId>> padded_;  // cotangents that are not in their sums yet
  std::vector<ExprId> order_;
};

/// Attention whose bias is differentiated, and gradients of attention, have no rule: they are
/// written out, and what they were is known by what they are now.
void write_out_for(ir::Fusion& fusion, std::vector<ValId>& outputs, std::vector<ValId>& wrt) {
  std::vector<bool> active(fusion.storage().vals.size(), false);
  for (const ValId id : wrt) active[id.index] = true;
  Replaced replaced;
  for (const ExprId id : fusion.sorted_exprs()) {
    const ir::Expr e = fusion.expr(id);
    const auto is_active = [&](ValId val) {  // what is new stands for results that are active
      return is_float(fusion.val(val).dtype) && (val.index >= active.size() || active[val.index]);
    };
    if (std::none_of(e.operands.begin(), e.operands.end(), is_active)) continue;
    for (const ValId result : e.results) active[result.index] = true;
    const bool bias =
        e.op == ir::Op::attention && e.operands.size() > 3 && is_active(e.operands[3]);
    if (bias || e.op == ir::Op::attention_grad) write_attention_out(fusion, id, replaced);
  }
  for (std::vector<ValId>* list : {&outputs, &wrt})
    for (ValId& id : *list)
      if (const auto found = replaced.find(id); found != replaced.end()) id = found->second;
}

}  // namespace

std::vector<ValId> vjp(ir::Fusion& fusion, std::span<const ValId> outputs,
                       std::span<const ValId> cotangents, std::span<const ValId> wrt) {
  if (outputs.size() != cotangents.size())
    throw UsageError(
        fmt::format("{} outputs to differentiate came with {} cotangents; each needs one",
                    outputs.size(), cotangents.size()));
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    const ir::Val& output = fusion.val(outputs[i]);
    const ir::Val& cotangent = fusion.val(cotangents[i]);
    if (!is_float(output.dtype))
      throw UsageError(
          fmt::format("output {} to differentiate is {}; only floating point values have gradients",
                      i, name_of(output.dtype)));
    if (output.dtype != cotangent.dtype || !fusion.equal(output.shape, cotangent.shape))
      throw UsageError(
          fmt::format("the cotangent of output {} is {}{}; it must be {}{} like the output", i,
                      name_of(cotangent.dtype), fusion.to_string(cotangent.shape),
                      name_of(output.dtype), fusion.to_string(output.shape)));
  }
  for (const ValId id : wrt)
    if (!is_float(fusion.val(id).dtype))
      throw UsageError(
          fmt::format("found a {} value to differentiate with respect to; only floating point "
                      "values have gradients",
                      name_of(fusion.val(id).dtype)));
  std::vector<ValId> from(outputs.begin(), outputs.end());
  std::vector<ValId> to(wrt.begin(), wrt.end());
  write_out_for(fusion, from, to);
  Reverse reverse(fusion, to);
  for (std::size_t i = 0; i < from.size(); ++i) reverse.seed(from[i], cotangents[i]);
  reverse.sweep();
  std::vector<ValId> result;
  for (const ValId id : to) result.push_back(reverse.adjoint_or_zero(id));
  return result;
}

std::vector<ValId> gradients(ir::Fusion& fusion, ValId scalar, std::span<const ValId> wrt) {
  if (!fusion.val(scalar).shape.empty())
    throw UsageError(fmt::format(
        "the value to differentiate has the shape {}; gradients() needs a scalar, vjp() takes any",
        fusion.to_string(fusion.val(scalar).shape)));
  if (!is_float(fusion.val(scalar).dtype))
    throw UsageError(
        fmt::format("the value to differentiate is {}; only floating point values have gradients",
                    name_of(fusion.val(scalar).dtype)));
  const ValId outputs[] = {scalar};
  const ValId cotangents[] = {fusion.constant(1, fusion.val(scalar).dtype)};
  return vjp(fusion, outputs, cotangents, wrt);
}

}  // namespace segfuse::compiler
