#include "support/random/group_runner.h"

#include <fmt/core.h>

#include <map>

#include "compiler/loop/interpret.h"
#include "ir/bind.h"
#include "ir/interpret/evaluate.h"
#include "segfuse/error.h"

namespace segfuse::testing {

using namespace segfuse::compiler;
using ir::ValId;

namespace {

Tensor widened(const Tensor& tensor) {
  Tensor result(ir::wide(tensor.dtype()), tensor.shape());
  for (std::int64_t i = 0; i < tensor.size(); ++i) {
    if (is_float(tensor.dtype())) {
      result.set(i, tensor.at(i));
    } else if (tensor.dtype() == DType::kI64) {
      result.span<std::int64_t>()[static_cast<std::size_t>(i)] =
          tensor.span<std::int64_t>()[static_cast<std::size_t>(i)];
    } else {
      result.span<std::int64_t>()[static_cast<std::size_t>(i)] =
          static_cast<std::int64_t>(tensor.at(i));
    }
  }
  return result;
}

class Runner {
 public:
  Runner(const SegmentedFusion& segmented, std::span<const Tensor> inputs,
         const ScheduleFor& schedule,
         const std::function<void(const Space&, const LoweredGroup&)>& seen,
         const KernelRunner& runner)
      : runner_(runner),
        segmented_(segmented),
        fusion_(segmented.fusion()),
        schedule_(schedule),
        seen_(seen) {
    std::vector<Shape> shapes;
    for (const Tensor& input : inputs) shapes.push_back(input.shape());
    // Lowering adds sizes that follow from others, so binding comes after it.
    for (const SegmentedGroup& group : segmented.groups()) lower(group);
    sizes_ = ir::bind(fusion_, shapes);
    for (std::size_t i = 0; i < inputs.size(); ++i)
      values_[fusion_.inputs()[i].val] = widened(inputs[i]);
  }

  std::vector<Tensor> run() {
    std::size_t next = 0;
    for (const SegmentedGroup& group : segmented_.groups()) {
      const GroupKind kind = segmented_.domain(group.id).kind;
      if (kind == GroupKind::kView || kind == GroupKind::kLibrary) {
        for (const ir::ExprId id : group.exprs) evaluate(id);
      } else {
        run(lowered_[next++]);
      }
    }
    std::vector<Tensor> outputs;
    for (const ir::Output& output : fusion_.outputs()) outputs.push_back(value(output.val));
    return outputs;
  }

 private:
  void lower(const SegmentedGroup& group) {
    const IterationDomain& domain = segmented_.domain(group.id);
    if (domain.kind == GroupKind::kView || domain.kind == GroupKind::kLibrary) return;
    const GroupLowering lowering(fusion_, group, domain, segmented_.in_place, segmented_.hints(),
                                 "k" + std::to_string(group.id.index));
    lowered_.push_back(lowering.lower(schedule_(lowering.space())));
    if (seen_) seen_(lowering.space(), lowered_.back());
  }

  ValId memory_of(ValId val) const {
    for (const ir::Alias& alias : segmented_.in_place)
      if (alias.output == val) return alias.input;
    return val;
  }

  Tensor& value(ValId val) {
    const ValId memory = memory_of(val);
    if (const auto known = values_.find(memory); known != values_.end()) return known->second;
    const ir::Val& v = fusion_.val(memory);
    return values_[memory] =
               Tensor::full(ir::wide(v.dtype), sizes_.of(v.shape),
                            is_float(v.dtype) ? std::numeric_limits<double>::quiet_NaN() : -77);
  }

  void evaluate(ir::ExprId id) {
    std::vector<Tensor> operands;
    for (const ValId operand : fusion_.expr(id).operands) {
      if (!values_.contains(memory_of(operand)) && fusion_.val(operand).definition.valid())
        evaluate(fusion_.val(operand).definition);  // free
      operands.push_back(value(operand));
    }
    const ir::Evaluation e{fusion_, sizes_, id, operands};
    std::vector<Tensor> results;
    switch (ir::info(fusion_.expr(id).op).op_class) {
      case ir::OpClass::kMovement: results = ir::evaluate_movement(e); break;
      case ir::OpClass::kCreation: results = ir::evaluate_creation(e); break;
      case ir::OpClass::kElementwise: results = ir::evaluate_elementwise(e); break;
      case ir::OpClass::kReduction:
      case ir::OpClass::kOpaque: results = ir::evaluate(e, {});
    }
    for (std::size_t i = 0; i < results.size(); ++i)
      values_[fusion_.expr(id).results[i]] = results[i];
  }

  void run(const LoweredGroup& group) {
    std::vector<Tensor> workspaces;
    for (const Workspace& workspace : group.workspaces)
      workspaces.push_back(
          Tensor::full(ir::wide(workspace.dtype), {sizes_.of(workspace.elements)},
                       is_float(workspace.dtype) ? std::numeric_limits<double>::quiet_NaN() : -77));
    for (const GroupKernel& kernel : group.kernels) {
      std::vector<Tensor> globals;
      for (const Operand& operand : kernel.operands)
        globals.push_back(operand.val.valid() ? value(operand.val) : workspaces[operand.workspace]);
      const auto size = [&](const ir::Extent& extent) { return sizes_.of(extent); };
      const int status = runner_ ? runner_(kernel.kernel, globals, size)
                                 : loop::interpret(kernel.kernel, globals, size);
      if (status != 0)
        throw UsageError(fmt::format("{} is out of range",
                                     kernel.kernel.checks[static_cast<std::size_t>(status - 1)]));
    }
  }

  const KernelRunner& runner_;
  const SegmentedFusion& segmented_;
  ir::Fusion fusion_;
  const ScheduleFor& schedule_;
  const std::function<void(const Space&, const LoweredGroup&)>& seen_;
  ir::Sizes sizes_;
  std::vector<LoweredGroup> lowered_;
  std::map<ValId, Tensor> values_;
};

}  // namespace

std::vector<Tensor> run_groups(const SegmentedFusion& segmented, std::span<const Tensor> inputs,
                               const ScheduleFor& schedule,
                               const std::function<void(const Space&, const LoweredGroup&)>& seen,
                               const KernelRunner& runner) {
  return Runner(segmented, inputs, schedule, seen, runner).run();
}

}  // namespace segfuse::testing
