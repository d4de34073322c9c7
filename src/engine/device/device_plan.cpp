#include "engine/device/device_plan.h"

#include <algorithm>
#include <chrono>

#include "engine/device/device_planner.h"
#include "engine/exec/view.h"
#include "segfuse/error.h"

namespace segfuse::engine {

using compiler::PlanKind;
using compiler::SegmentedGroup;
using plan::Buffer;

namespace {

constexpr std::size_t kMostChecks = 4096;
constexpr std::uint32_t kNone = ~std::uint32_t{0};
constexpr std::uint8_t kPoison = 0xFF;  // NaN in every float type

std::size_t bytes_of(DType dtype, const Shape& shape) {
  return static_cast<std::size_t>(num_elements(shape)) * size_of(dtype);
}

}  // namespace

DevicePlanner::DevicePlanner(DeviceKernels& fusion, const ir::Sizes& sizes,
                             Accelerator& accelerator, DeviceCrf& crf,
                             const DevicePlanOptions& options)
    : fusion_(fusion.fusion()),
      segmented_(fusion.segmented()),
      groups_(fusion.groups()),
      sizes_(sizes),
      accelerator_(accelerator),
      crf_(crf),
      options_(options),
      refs_(fusion_.storage().vals.size()),
      live_(fusion_.storage().exprs.size(), false),
      output_buffers_(fusion_.outputs().size(), kNone) {
  for (const ir::ExprId id : fusion_.live_exprs()) live_[id.index] = true;
  plan_.name = fusion_.name();
}

std::uint32_t DevicePlanner::add_buffer(Buffer::Kind kind, std::string name, std::size_t bytes) {
  plan_.buffers.push_back({kind, std::move(name), std::max<std::size_t>(bytes, 1)});
  return static_cast<std::uint32_t>(plan_.buffers.size() - 1);
}

Ref DevicePlanner::scratch(DType dtype, Shape shape, const char* name) {
  const std::size_t bytes = bytes_of(dtype, shape);
  const Ref made{add_buffer(Buffer::Kind::kScratch, name, bytes), dtype,
                 contiguous(std::move(shape))};
  poison(made);
  return made;
}

Ref DevicePlanner::place(ir::ValId val) {
  const auto output = direct_outputs_.find(val.index);
  const Ref made{output != direct_outputs_.end()
                     ? output_buffers_[output->second]
                     : add_buffer(Buffer::Kind::kScratch, fmt::format("%{}", val.index),
                                  bytes_of(dtype(val), shape(val))),
                 dtype(val), contiguous(shape(val))};
  poison(made);
  return refs_[val.index] = made;
}

std::uint32_t DevicePlanner::alignment_of(const Ref& ref) const {
  const auto offset = static_cast<std::uint64_t>(ref.layout.offset) * size_of(ref.dtype);
  return offset == 0 ? 256U
                     : static_cast<std::uint32_t>(std::min<std::uint64_t>(256, offset & -offset));
}

std::string DevicePlanner::name_of(ir::ExprId id) const {
  return std::string(ir::info(fusion_.expr(id).op).name);
}

void DevicePlanner::add_step(std::string name, const StepOperands& operands,
                             runtime::PlanFunction function) {
  plan::Step step;
  step.name = std::move(name);
  step.function = static_cast<std::uint32_t>(functions_.size());
  step.reads = operands.reads();
  step.writes = operands.writes();
  functions_.push_back(options_.measure ? measured(step.name, std::move(function))
                                        : std::move(function));
  plan_.steps.push_back(std::move(step));
}

/// The same, waited for before and after.
runtime::PlanFunction DevicePlanner::measured(const std::string& name,
                                              runtime::PlanFunction function) {
  auto time = std::make_shared<DeviceStepTime>();
  time->what = name;
  result_.times.push_back(time);
  return [time, function = std::move(function), gpu = accelerator_.shared_gpu()](
             runtime::StreamHandle stream, std::span<std::byte* const> addresses) {
    using Clock = std::chrono::steady_clock;
    gpu->synchronize(stream);
    const auto begin = Clock::now();
    function(stream, addresses);
    gpu->synchronize(stream);
    time->seconds += std::chrono::duration<double>(Clock::now() - begin).count();
    ++time->runs;
  };
}

void DevicePlanner::add_launch(std::string name, const StepOperands& operands, Launch launch) {
  add_step(std::move(name), operands,
           [gpu = accelerator_.shared_gpu(), launch = std::move(launch)](
               runtime::StreamHandle stream, std::span<std::byte* const> addresses) {
             std::vector<std::uint64_t> words = launch.words;
             for (const Launch::Patch& patch : launch.patches)
               words[patch.word] = reinterpret_cast<std::uintptr_t>(patch.address.in(addresses));
             gpu->launch(launch.kernel, launch.grid, launch.block, launch.shared, words.data(),
                         words.size() * sizeof(words[0]), stream);
           });
}

void DevicePlanner::add_library(std::string name, LibraryLaunch library,
                                const std::vector<Ref>& refs, std::size_t writes) {
  StepOperands operands;
  for (std::size_t i = 0; i < refs.size(); ++i) {
    if (i + writes < refs.size())
      operands.read(refs[i]);
    else
      operands.write(refs[i]);
  }
  Launch launch{accelerator_.gpu().kernel(library.program, library.entry),
                library.grid,
                library.block,
                0,
                std::move(library.words),
                {}};
  for (std::size_t i = 0; i < refs.size(); ++i) launch.patches.push_back({i, operands.of(refs[i])});
  add_launch(std::move(name), operands, std::move(launch));
}

Ref DevicePlanner::status_word(DeviceCheck check) {
  if (result_.checks.empty())
    status_ = add_buffer(Buffer::Kind::kInOut, "status", kMostChecks * sizeof(std::int32_t));
  if (result_.checks.size() == kMostChecks)
    throw UsageError("the program has more than {} operations that check indices", kMostChecks);
  Ref word{status_, DType::kI32, contiguous({1})};
  word.layout.offset = static_cast<std::int64_t>(result_.checks.size());
  result_.checks.push_back(std::move(check));
  return word;
}

void DevicePlanner::add_indices(DeviceCheck& check, ir::ExprId id) const {
  const ir::Expr& expr = fusion_.expr(id);
  const Ref& indices = ref(expr.operands[1]);
  if (indices.storage >= fusion_.inputs().size()) return;  // inputs are the first buffers
  const auto axis = static_cast<std::size_t>(fusion_.attr<std::int64_t>(id, "axis"));
  const ir::ValId table = expr.op == ir::Op::scatter_add ? expr.results[0] : expr.operands[0];
  check.indices.push_back({expr.op, indices.storage, shape(table)[axis]});
}

void DevicePlanner::fill(const Ref& ref, std::uint8_t value, const char* what) {
  StepOperands operands;
  operands.write(ref);
  plan::Step step;
  step.kind = plan::Step::Kind::kFill;
  step.name = what;
  step.value = value;
  step.writes = operands.writes();
  plan_.steps.push_back(std::move(step));
}

void DevicePlanner::poison(const Ref& ref) {
  if (options_.poison) fill(ref, kPoison, "poison");
}

void DevicePlanner::copy(const Ref& from, const Ref& to, const char* what) {
  if (num_elements(to.layout.shape) == 0) return touch(to);
  const Nest nest = collapse(from.layout.shape, {from.layout.strides});
  add_library(what, copy_view_launch(size_of(from.dtype), nest.sizes, nest.strides[0]), {from, to},
              1);
}

Ref DevicePlanner::packed(const Ref& ref) {
  // Generated kernels and products begin at multiples of 256 bytes.
  if (is_contiguous(ref.layout) && ref.layout.offset == 0) return ref;
  const Ref target = scratch(ref.dtype, ref.layout.shape, "packed");
  copy(ref, target, "pack");
  return target;
}

void DevicePlanner::plan_inputs() {
  for (std::size_t i = 0; i < fusion_.inputs().size(); ++i) {
    const ir::ValId val = fusion_.inputs()[i].val;
    const bool overwritten =
        std::any_of(fusion_.aliases().begin(), fusion_.aliases().end(),
                    [&](const ir::Alias& alias) { return alias.input == val; });
    const std::uint32_t buffer =
        add_buffer(overwritten ? Buffer::Kind::kInOut : Buffer::Kind::kInput,
                   fusion_.inputs()[i].name, bytes_of(dtype(val), shape(val)));
    refs_[val.index] = {buffer, dtype(val), contiguous(shape(val))};
  }
  for (std::size_t i = 0; i < fusion_.outputs().size(); ++i) {
    const ir::ValId val = fusion_.outputs()[i].val;
    result_.output_shapes.push_back(shape(val));
    result_.in_place.emplace_back();
    for (const ir::Alias& alias : segmented_.in_place) {
      if (alias.output != val) continue;
      std::size_t input = 0;
      while (fusion_.inputs()[input].val != alias.input) ++input;
      result_.in_place.back() = input;
    }
    if (result_.in_place.back()) continue;
    output_buffers_[i] = add_buffer(Buffer::Kind::kOutput, fusion_.outputs()[i].name,
                                    bytes_of(dtype(val), shape(val)));
    if (fusion_.val(val).definition.valid()) direct_outputs_.emplace(val.index, i);
  }
}

/// Which values are looked at or kept, and memory for that.
void DevicePlanner::plan_looks() {
  const auto add = [&](ir::ValId val) {
    if (is_float(dtype(val)) && num_elements(shape(val)) > 0) result_.looked_at.push_back(val);
  };
  const auto allocate = [&](std::size_t bytes, const char* label) {
    return accelerator_.allocate(bytes, label);
  };
  if (options_.look) {
    for (const ir::Input& input : fusion_.inputs()) add(input.val);
    for (const SegmentedGroup& group : groups_)
      if (segmented_.plan(group.id).kind != PlanKind::kView)
        for (const ir::ValId output : group.boundary.outputs) add(output);
  }
  if (!result_.looked_at.empty()) {
    const std::size_t bytes = result_.looked_at.size() * sizeof(std::int32_t);
    words_ = add_buffer(Buffer::Kind::kInOut, "words", bytes);
    result_.words = allocate(bytes, "words");
    fill({words_, DType::kI32, contiguous({1})}, 0, "no faults");
    for (const ir::Input& input : fusion_.inputs()) look(input.val);
  }
  if (!options_.keep) return;
  const compiler::Boundary& boundary = groups_[options_.keep->index].boundary;
  for (const std::vector<ir::ValId>* vals : {&boundary.inputs, &boundary.outputs})
    for (const ir::ValId val : *vals) {
      const std::size_t bytes = std::max<std::size_t>(bytes_of(dtype(val), shape(val)), 1);
      kept_[val.index] = add_buffer(Buffer::Kind::kInOut, "kept", bytes);
      result_.kept.emplace_back(val, allocate(bytes, "kept"));
    }
}

void DevicePlanner::look(ir::ValId val) {
  const auto found = std::find(result_.looked_at.begin(), result_.looked_at.end(), val);
  if (found == result_.looked_at.end()) return;
  Ref word{words_, DType::kI32, contiguous({1})};
  word.layout.offset = found - result_.looked_at.begin();
  const Ref all = ref(val);
  add_library("look", look_launch(all.dtype, num_elements(all.layout.shape)), {all, word}, 1);
}

void DevicePlanner::keep(std::span<const ir::ValId> vals) {
  for (const ir::ValId val : vals)
    copy(ref(val), {kept_.at(val.index), dtype(val), contiguous(shape(val))}, "keep");
}

/// Outputs that no step has made in place are copied, and so are inputs that are overwritten last.
void DevicePlanner::plan_outputs() {
  for (std::size_t i = 0; i < fusion_.outputs().size(); ++i) {
    if (result_.in_place[i]) continue;
    const ir::ValId val = fusion_.outputs()[i].val;
    const Ref target{output_buffers_[i], dtype(val), contiguous(shape(val))};
    if (ref(val).storage != target.storage) copy(ref(val), target, "copy");
  }
  for (const ir::Alias& alias : fusion_.aliases()) {
    const bool in_place =
        std::any_of(segmented_.in_place.begin(), segmented_.in_place.end(),
                    [&](const ir::Alias& known) { return known.output == alias.output; });
    if (!in_place) copy(ref(alias.output), ref(alias.input), "overwrite");
  }
}

void DevicePlanner::plan_kernels(const SegmentedGroup& group, const DeviceGroup& code) {
  for (const ir::ValId input : group.boundary.inputs) refs_[input.index] = packed(ref(input));
  for (const ir::ValId output : group.boundary.outputs) {
    const auto alias = std::find_if(segmented_.in_place.begin(), segmented_.in_place.end(),
                                    [&](const ir::Alias& a) { return a.output == output; });
    if (alias != segmented_.in_place.end()) {
      refs_[output.index] = ref(alias->input);
    } else if (num_elements(place(output).layout.shape) == 0) {
      touch(ref(output));
    }
  }
  std::vector<Ref> workspaces;
  for (const compiler::Workspace& workspace : code.workspaces)
    workspaces.push_back(scratch(workspace.dtype, {sizes_.of(workspace.elements)}, "workspace"));
  const auto size = [&](const ir::Extent& extent) { return sizes_.of(extent); };
  for (const std::shared_ptr<const DeviceKernel>& kernel : code.kernels) {
    if (sizes_.of(kernel->launch.outer_count) == 0) continue;
    StepOperands operands;
    std::vector<Ref> refs;
    std::size_t next = 0;
    for (const compiler::loop::Buffer& buffer : kernel->kernel.kernel.buffers) {
      if (buffer.kind == compiler::loop::Buffer::Kind::kRow) continue;
      const compiler::Operand& operand = kernel->kernel.operands[next++];
      refs.push_back(operand.val.valid() ? ref(operand.val) : workspaces[operand.workspace]);
      if (buffer.kind == compiler::loop::Buffer::Kind::kInput)
        operands.read(refs.back());
      else
        operands.write(refs.back());
    }
    const std::vector<void*> nowhere(refs.size(), nullptr);
    Launch launch{kernel->code,
                  {kernel->launch.blocks(size), 1, 1},
                  {kernel->launch.threads, kernel->launch.rows_at_once, 1},
                  kernel->launch.shared_bytes(size),
                  kernel->launch.argument(nowhere, size, nullptr),
                  {}};
    if (!kernel->kernel.kernel.checks.empty()) {
      DeviceCheck check{kernel->kernel.kernel.checks, {}};
      for (const ir::ExprId id : group.exprs) {
        const ir::Op op = fusion_.expr(id).op;
        if (op == ir::Op::take || op == ir::Op::gather) add_indices(check, id);
      }
      refs.push_back(status_word(std::move(check)));
      operands.write(refs.back());
    }
    for (std::size_t i = 0; i < refs.size(); ++i)
      launch.patches.push_back({i < next ? i : launch.words.size() - 1, operands.of(refs[i])});
    add_launch(fmt::format("{} of {}", kernel->kernel.kernel.name, group.exprs.size()), operands,
               std::move(launch));
  }
}

void DevicePlanner::plan_view(ir::ExprId id) {
  const ir::Expr& expr = fusion_.expr(id);
  Ref view = ref(expr.operands[0]);
  std::optional<Layout> layout = view_of(fusion_, sizes_, id, view.layout);
  if (!layout) {
    view = packed(view);
    layout = view_of(fusion_, sizes_, id, view.layout);
  }
  view.layout = std::move(*layout);
  refs_[expr.results[0].index] = view;
}

void DevicePlanner::plan_group(const SegmentedGroup& group, const DeviceGroup& code) {
  const bool kept = options_.keep && *options_.keep == group.id;
  if (kept) keep(group.boundary.inputs);
  const PlanKind kind = segmented_.plan(group.id).kind;
  switch (kind) {
    case PlanKind::kView:
      for (const ir::ExprId id : group.exprs) plan_view(id);
      break;
    case PlanKind::kLibrary: plan_library(group.exprs.front()); break;
    default: plan_kernels(group, code);
  }
  if (kept) keep(group.boundary.outputs);
  if (!options_.look || kind == PlanKind::kView) return;
  for (const ir::ValId output : group.boundary.outputs) look(output);
}

DevicePlan DevicePlanner::run(std::span<const DeviceGroup> groups) {
  plan_inputs();
  plan_looks();
  for (const SegmentedGroup& group : groups_) plan_group(group, groups[group.id.index]);
  plan_outputs();
  if (!result_.checks.empty()) {
    result_.status = accelerator_.allocate(kMostChecks * sizeof(std::int32_t), "status");
    accelerator_.executor().fill(accelerator_.streams()[0], result_.status, 0);
  }
  const std::span<const runtime::StreamId> streams = accelerator_.streams();
  result_.runner = std::make_unique<runtime::PlanRunner>(
      std::move(plan_), std::move(functions_), accelerator_.heap(), accelerator_.executor(),
      std::vector<runtime::StreamId>(streams.begin(), streams.end()));
  return std::move(result_);
}

DevicePlan make_device_plan(DeviceKernels& fusion, Accelerator& accelerator, DeviceCrf& crf,
                            std::span<const Tensor> inputs, const DevicePlanOptions& options) {
  ir::Sizes sizes;
  const std::vector<DeviceGroup> groups = fusion.prepare(inputs, sizes);
  return DevicePlanner(fusion, sizes, accelerator, crf, options).run(groups);
}

}  // namespace segfuse::engine
