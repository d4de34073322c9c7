#include "engine/plan/builder.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "engine/exec/view.h"

namespace segfuse::engine {

using plan::BufferSpec;

namespace {

constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::uint8_t kPoison = 0xFF;  // NaN in every float type

}  // namespace

PlanBuilder::PlanBuilder(const ir::Fusion& fusion, const ir::Sizes& sizes,
                         std::span<const ir::Alias> in_place, PlanOptions options)
    : fusion_(fusion),
      sizes_(sizes),
      options_(options),
      refs_(fusion.storage().vals.size()),
      live_(fusion.storage().exprs.size(), false),
      output_buffers_(fusion.outputs().size(), kNone) {
  for (const ir::ExprId id : fusion.live_exprs()) live_[id.index] = true;
  for (const ir::Alias& alias : in_place)  // an output is in one place
    if (std::none_of(in_place_.begin(), in_place_.end(),
                     [&](const ir::Alias& known) { return known.output == alias.output; }))
      in_place_.push_back(alias);
  result_.plan.name = fusion.name();
}

std::uint32_t PlanBuilder::add_buffer(BufferSpec::Kind kind, std::string name, std::size_t bytes) {
  result_.plan.buffers.push_back({kind, std::move(name), std::max<std::size_t>(bytes, 1)});
  return static_cast<std::uint32_t>(result_.plan.buffers.size() - 1);
}

Ref PlanBuilder::scratch(DType dtype, Shape shape, std::string name) {
  const std::size_t bytes = bytes_of(dtype, shape);
  const Ref made{add_buffer(BufferSpec::Kind::kScratch, std::move(name), bytes), dtype,
                 contiguous(std::move(shape))};
  poison(made);
  return made;
}

Ref PlanBuilder::place(ir::ValId val, DType type) {
  const auto output = direct_outputs_.find(val.index);
  Ref& made = refs_.at(val.index);
  if (type == dtype(val))
    if (const std::optional<Ref> shared = overwritten_by(val)) return made = *shared;
  if (output == direct_outputs_.end() || type != dtype(val))
    return made = scratch(type, shape(val), fmt::format("%{}", val.index));
  made = {output_buffers_[output->second], type, contiguous(shape(val))};
  poison(made);
  return made;
}

std::size_t PlanBuilder::input_of(ir::ValId val) const {
  std::size_t input = 0;
  while (fusion_.inputs()[input].val != val) ++input;
  return input;
}

Ref PlanBuilder::input_ref(std::size_t input) const {
  const ir::ValId val = fusion_.inputs()[input].val;
  return {static_cast<std::uint32_t>(input), dtype(val), contiguous(shape(val))};
}

std::optional<Ref> PlanBuilder::overwritten_by(ir::ValId output) const {
  for (const ir::Alias& alias : in_place_)
    if (alias.output == output) return input_ref(input_of(alias.input));
  return {};
}

std::string PlanBuilder::name_of(ir::ExprId id) const {
  return std::string(ir::info(fusion_.expr(id).op).name);
}

Ref PlanBuilder::packed(const Ref& ref) {
  if (is_packed(ref)) return ref;
  const Ref target = scratch(ref.dtype, ref.layout.shape, "packed");
  copy(ref, target, "pack");
  return target;
}

bool PlanBuilder::wanted(ir::ValId result) const {
  const auto& uses = fusion_.val(result).uses;
  return fusion_.is_output(result) ||
         std::any_of(uses.begin(), uses.end(), [&](ir::ExprId user) { return is_live(user); });
}

void PlanBuilder::add_step(std::string name, const StepOperands& operands,
                           runtime::PlanFunction function) {
  plan::Step step;
  step.name = std::move(name);
  step.function = static_cast<std::uint32_t>(result_.functions.size());
  step.reads = operands.reads();
  step.writes = operands.writes();
  result_.functions.push_back(options_.measure ? measured(step.name, std::move(function))
                                               : std::move(function));
  result_.plan.steps.push_back(std::move(step));
}

/// The same, waited for before and after.
runtime::PlanFunction PlanBuilder::measured(const std::string& name,
                                            runtime::PlanFunction function) {
  auto time = std::make_shared<StepTime>();
  time->what = name;
  result_.times.push_back(time);
  return [time, function = std::move(function), wait = waiter()](
             runtime::StreamHandle stream, std::span<std::byte* const> addresses) {
    using Clock = std::chrono::steady_clock;
    wait(stream);
    const auto begin = Clock::now();
    function(stream, addresses);
    wait(stream);
    time->seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    ++time->runs;
  };
}

void PlanBuilder::fill(const Ref& ref, std::uint8_t value, const char* what) {
  StepOperands operands;
  operands.write(ref);
  plan::Step step;
  step.kind = plan::Step::Kind::kFill;
  step.name = what;
  step.value = value;
  step.writes = operands.writes();
  result_.plan.steps.push_back(std::move(step));
}

void PlanBuilder::poison(const Ref& ref) {
  if (options_.poison && num_elements(ref.layout.shape) > 0) fill(ref, kPoison, "poison");
}

void PlanBuilder::plan_groups(const compiler::CompiledFusion& compiled) {
  for (const compiler::SegmentedGroup& group : compiled.groups()) {
    const compiler::GroupKind kind = compiled.segmented().domain(group.id).kind;
    before_group(group);
    refuse_nothing(group);
    if (kind == compiler::GroupKind::kView)
      for (const ir::ExprId id : group.exprs) plan_view(id);
    else if (kind == compiler::GroupKind::kLibrary)
      plan_library(group.exprs.front());
    else
      plan_kernels(group);
    after_group(group, kind);
  }
}

/// A kernel would write some number.
void PlanBuilder::refuse_nothing(const compiler::SegmentedGroup& group) const {
  for (const ir::ExprId id : group.exprs) {
    const ir::Expr& expr = fusion_.expr(id);
    if (expr.op == ir::Op::argmax && num_elements(shape(expr.operands[0])) == 0 &&
        num_elements(shape(expr.results[0])) > 0)
      throw UsageError("argmax: an axis of size 0 has no maximum");
  }
}

std::vector<Ref> PlanBuilder::open_group(const compiler::SegmentedGroup& group,
                                         std::span<const compiler::Workspace> workspaces) {
  for (const ir::ValId input : group.boundary.inputs) set_ref(input, packed(ref(input)));
  for (const ir::ValId output : group.boundary.outputs) place(output);
  std::vector<Ref> made;
  for (const compiler::Workspace& workspace : workspaces)
    made.push_back(scratch(workspace.dtype, {sizes_.of(workspace.elements)}, "workspace"));
  return made;
}

void PlanBuilder::plan_inputs() {
  for (std::size_t i = 0; i < fusion_.inputs().size(); ++i) {
    const ir::ValId val = fusion_.inputs()[i].val;
    const bool overwritten =
        std::any_of(fusion_.aliases().begin(), fusion_.aliases().end(),
                    [&](const ir::Alias& alias) { return alias.input == val; });
    add_buffer(overwritten ? BufferSpec::Kind::kInOut : BufferSpec::Kind::kInput,
               fusion_.inputs()[i].name, bytes_of(dtype(val), shape(val)));
    refs_[val.index] = input_ref(i);
  }
  for (std::size_t i = 0; i < fusion_.outputs().size(); ++i) {
    const ir::ValId val = fusion_.outputs()[i].val;
    result_.output_shapes.push_back(shape(val));
    result_.in_place.emplace_back();
    for (const ir::Alias& alias : in_place_)
      if (alias.output == val) result_.in_place.back() = input_of(alias.input);
    if (result_.in_place.back()) continue;
    output_buffers_[i] = add_buffer(BufferSpec::Kind::kOutput, fusion_.outputs()[i].name,
                                    bytes_of(dtype(val), shape(val)));
    if (fusion_.val(val).definition.valid()) direct_outputs_.emplace(val.index, i);
  }
}

void PlanBuilder::plan_view(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  Ref view = ref(expr.operands[0]);
  std::optional<Layout> layout = view_of(fusion_, sizes_, id, view.layout);
  if (!layout) {
    view = packed(view);
    layout = view_of(fusion_, sizes_, id, view.layout);
  }
  view.layout = std::move(*layout);
  refs_[expr.results[0].index] = std::move(view);
}

void PlanBuilder::plan_outputs() {
  std::map<std::uint32_t, Ref> made;  // by ValId: an output's own memory
  for (std::size_t i = 0; i < fusion_.outputs().size(); ++i) {
    const ir::ValId val = fusion_.outputs()[i].val;
    if (result_.in_place[i]) {  // a view is where its operand is
      const Ref target = input_ref(*result_.in_place[i]);
      if (ref(val).buffer != target.buffer) copy(ref(val), target, "overwrite");
      continue;
    }
    const Ref target{output_buffers_[i], dtype(val), contiguous(shape(val))};
    if (ref(val).buffer != target.buffer) copy(ref(val), target, "copy");
    made.emplace(val.index, target);
  }
  // From the outputs: what they were made of may be overwritten by now.
  for (const ir::Alias& alias : fusion_.aliases()) {
    if (std::find(in_place_.begin(), in_place_.end(), alias) != in_place_.end()) continue;
    const std::optional<Ref> shared = overwritten_by(alias.output);
    copy(shared ? *shared : made.at(alias.output.index), input_ref(input_of(alias.input)),
         "overwrite");
  }
}

}  // namespace segfuse::engine
