// What a program's own kernels made of some inputs: see DeviceProgram::look().

#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>

#include "engine/device/device_program.h"
#include "engine/numerics/part.h"
#include "engine/numerics/walk.h"
#include "ir/bind.h"
#include "segfuse/error.h"

namespace segfuse::engine {

namespace {

constexpr int kHoldsNaN = 1;
constexpr int kHoldsInfinity = 2;

/// The first element that is not finite where it should be.
std::int64_t first_unexpected(const Tensor& found, const Tensor& expected) {
  if (!is_float(found.dtype())) return -1;
  for (std::int64_t i = 0; i < found.size(); ++i) {
    const double value = found.at(i);
    if (std::isfinite(value) || (std::isinf(value) && std::isinf(expected.at(i)))) continue;
    if (!std::isnan(expected.at(i))) return i;
  }
  return -1;
}

std::string operations_of(const ir::Fusion& fusion, std::span<const ir::ExprId> exprs) {
  std::vector<std::string_view> names;
  for (const ir::ExprId id : exprs) names.push_back(ir::info(fusion.expr(id).op).name);
  return fmt::format("{}", fmt::join(names, " "));
}

/// "exp gave nan at element [0, 7] of value %31 f32[4, 96] on cuda:0, where it should be 0.5"
std::string of_kernel(const std::string& who, const Tensor& found, const Tensor& expected,
                      std::int64_t at, const std::string& value, const std::string& device) {
  return fmt::format(
      "{} gave {} at element {} of value {} {}{} on {}, where it should be {}: the kernel is at "
      "fault, not the program; segfuse doctor numerics --device {} looks closer",
      who, numerics::number_text(found.at(at)), numerics::index_text(at, found.shape()), value,
      name_of(found.dtype()), to_string(found.shape()), device,
      numerics::number_text(expected.at(at)), device);
}

}  // namespace

/// What is overwritten is copied.
std::vector<Tensor> DeviceProgram::copies(std::span<const Tensor> inputs) const {
  std::vector<Tensor> given = on_accelerator(inputs);
  for (const ir::Alias& alias : program_.aliases())
    for (std::size_t i = 0; i < given.size(); ++i)
      if (program_.inputs()[i].val == alias.input) given[i] = given[i].clone();
  return given;
}

std::string DeviceProgram::look(std::span<const Tensor> inputs) {
  check();
  DevicePlanOptions options{options_};
  options.look = true;
  const std::shared_ptr<DevicePlan> looking = plan_for(inputs, looks_, options);
  const DevicePlan& plan = *looking;
  static_cast<void>(start(looking, copies(inputs)));
  Tensor words(DType::kI32, {static_cast<std::int64_t>(plan.looked_at.size())});
  if (words.size() > 0) accelerator_->download(plan.words, words);
  const auto holds = [&](ir::ValId val, int what) {
    const auto found = std::find(plan.looked_at.begin(), plan.looked_at.end(), val);
    return found != plan.looked_at.end() &&
           (words.span<std::int32_t>()[static_cast<std::size_t>(found - plan.looked_at.begin())] &
            what) != 0;
  };
  const auto any = [&](const std::vector<ir::ValId>& vals, int what) {
    return std::any_of(vals.begin(), vals.end(), [&](ir::ValId val) { return holds(val, what); });
  };
  for (const compiler::SegmentedGroup& group : fusion_.groups()) {
    const bool loss = fusion_.fusion().expr(group.exprs.front()).op == ir::Op::semicrf_loss;
    const bool suspect = any(group.boundary.outputs, kHoldsNaN) ||
                         (any(group.boundary.outputs, kHoldsInfinity) &&
                          (loss || !any(group.boundary.inputs, kHoldsNaN | kHoldsInfinity)));
    if (!suspect) continue;
    if (std::string sentence = judge(group, inputs); !sentence.empty()) {
      try {
        check();
      } catch (const Error&) {
        // What it refuses follows from what was found.
      }
      return sentence;
    }
  }
  check();
  return "";
}

/// The group's operations on what the group was really given, one by one.
std::string DeviceProgram::judge(const compiler::SegmentedGroup& group,
                                 std::span<const Tensor> inputs) {
  const ir::Fusion& fusion = fusion_.fusion();
  const ir::Sizes sizes = ir::bind_inputs(fusion, inputs);
  DevicePlanOptions options{options_};
  options.keep = group.id;
  const auto keeping =
      std::make_shared<DevicePlan>(make_device_plan(fusion_, *accelerator_, crf_, inputs, options));
  const DevicePlan& plan = *keeping;
  static_cast<void>(start(keeping, copies(inputs)));
  unchecked_ = nullptr;  // the look before has the same to say
  std::vector<Tensor> kept(fusion.storage().vals.size());
  for (const auto& [val, buffer] : plan.kept) {
    Tensor tensor(fusion.val(val).dtype, sizes.of(fusion.val(val).shape));
    if (tensor.size() > 0) accelerator_->download(buffer, tensor);
    kept[val.index] = std::move(tensor);
  }
  accelerator_->synchronize();

  const numerics::Part part =
      numerics::cut_part(fusion, sizes, group.boundary.outputs, [&](ir::ValId val) {
        return std::binary_search(group.boundary.inputs.begin(), group.boundary.inputs.end(), val);
      });
  std::vector<Tensor> given;
  for (const ir::ValId val : part.inputs) {
    std::size_t input = 0;  // scalars are no part of a boundary
    while (input < inputs.size() && fusion.inputs()[input].val != val) ++input;
    const bool scalar = input < inputs.size() && inputs[input].shape().empty();
    given.push_back(scalar ? inputs[input].to_host() : kept[val.index]);
  }
  const numerics::Walk walk = numerics::walk(part.fusion, given);
  if (walk.fault) return numerics::fault_text(part.fusion, walk);
  const std::vector<std::string> names = numerics::printed_names(part.fusion);
  for (const ir::ExprId id : part.fusion.live_exprs()) {
    const ir::Expr& expr = part.fusion.expr(id);
    const numerics::Part one = numerics::cut_part(
        part.fusion, ir::bind_inputs(part.fusion, given), std::vector{expr.results[0]},
        [&](ir::ValId val) {
          return ir::info(part.fusion.expr(part.fusion.val(val).definition).op).op_class !=
                 ir::OpClass::kCreation;
        });
    std::vector<Tensor> operands;
    for (const ir::ValId val : one.inputs) operands.push_back(walk.values[val.index]);
    const Tensor found = DeviceProgram(one.fusion, accelerator_, context_).run(operands)[0];
    const Tensor& expected = walk.values[expr.results[0].index];
    if (const std::int64_t at = first_unexpected(found, expected); at >= 0)
      return of_kernel(std::string(ir::info(expr.op).name), found, expected, at,
                       names[expr.results[0].index], accelerator_->name());
  }
  for (const ir::ValId output : group.boundary.outputs) {
    const ir::ValId made = part.made[output.index];
    const Tensor& expected = walk.values[made.index];
    if (const std::int64_t at = first_unexpected(kept[output.index], expected); at >= 0)
      return of_kernel(
          fmt::format("the kernel '{}' of {}",
                      compiler::function_name(fusion_.segmented().domain(group.id).kind),
                      operations_of(fusion, group.exprs)),
          kept[output.index], expected, at, names[made.index], accelerator_->name());
  }
  return "";
}

}  // namespace segfuse::engine
