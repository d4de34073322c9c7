#include "engine/device/device_plan.h"

#include <fmt/core.h>

#include <algorithm>

#include "engine/device/device_planner.h"
#include "segfuse/error.h"

namespace segfuse::engine {

using compiler::GroupKind;
using compiler::SegmentedGroup;
using plan::BufferSpec;

namespace {

constexpr std::size_t kMaxChecks = 4096;

}  // namespace

DevicePlanner::DevicePlanner(DeviceKernels& fusion, const ir::Sizes& sizes,
                             Accelerator& accelerator, DeviceCrf& crf,
                             const DevicePlanOptions& options)
    : PlanBuilder(fusion.fusion(), sizes, fusion.segmented().in_place, options),
      kernels_(fusion),
      compiled_(fusion.compiled()),
      accelerator_(accelerator),
      crf_(crf),
      store_(fusion.store()),
      device_options_(options) {}

std::function<void(runtime::StreamHandle)> DevicePlanner::waiter() const {
  return [device = accelerator_.device()](runtime::StreamHandle stream) {
    device->device().synchronize(stream);
  };
}

std::uint32_t DevicePlanner::alignment_of(const Ref& ref) const {
  const auto offset = static_cast<std::uint64_t>(ref.layout.offset) * size_of(ref.dtype);
  return offset == 0 ? 256U
                     : static_cast<std::uint32_t>(std::min<std::uint64_t>(256, offset & -offset));
}

void DevicePlanner::add_launch(std::string name, const StepOperands& operands, Launch launch) {
  add_step(std::move(name), operands,
           [kernels = accelerator_.kernels(), launch = std::move(launch)](
               runtime::StreamHandle stream, std::span<std::byte* const> addresses) {
             std::vector<std::uint64_t> words = launch.words;
             for (const Launch::Patch& patch : launch.patches)
               words[patch.word] = reinterpret_cast<std::uintptr_t>(patch.address.in(addresses));
             kernels->launch(stream, launch.kernel, launch.shape, words.data(),
                             words.size() * sizeof(words[0]));
           });
}

void DevicePlanner::add_library(std::string name, LibraryLaunch library,
                                const std::vector<Ref>& refs, std::size_t writes) {
  std::vector<Addressed> addressed;
  for (std::size_t i = 0; i < refs.size(); ++i)
    addressed.push_back({i, refs[i], i + writes >= refs.size()});
  add_library(std::move(name), std::move(library), addressed);
}

void DevicePlanner::add_library(std::string name, LibraryLaunch library,
                                std::span<const Addressed> refs) {
  StepOperands operands;
  for (const Addressed& one : refs) {
    if (one.written)
      operands.write(one.ref);
    else
      operands.read(one.ref);
  }
  library.program.store = store_;
  Launch launch{accelerator_.kernels()->kernel(library.program, library.entry),
                {library.grid, library.block, library.shared_bytes},
                std::move(library.words),
                {}};
  for (const Addressed& one : refs) launch.patches.push_back({one.word, operands.of(one.ref)});
  add_launch(std::move(name), operands, std::move(launch));
}

Ref DevicePlanner::status_word(DeviceCheck check) {
  if (made_.checks.empty())
    status_ = add_buffer(BufferSpec::Kind::kInOut, "status", kMaxChecks * sizeof(std::int32_t));
  if (made_.checks.size() == kMaxChecks)
    throw UsageError(
        fmt::format("the program has more than {} operations that check indices", kMaxChecks));
  Ref word{status_, DType::kI32, contiguous({1})};
  word.layout.offset = static_cast<std::int64_t>(made_.checks.size());
  made_.checks.push_back(std::move(check));
  return word;
}

void DevicePlanner::copy(const Ref& from, const Ref& to, const char* what) {
  if (num_elements(to.layout.shape) == 0) return touch(to);
  const Nest nest = collapse(from.layout.shape, {from.layout.strides});
  add_library(what, copy_view_launch(size_of(from.dtype), nest.sizes, nest.strides[0]), {from, to},
              1);
}

/// Which values are looked at or kept, and memory for that.
void DevicePlanner::plan_looks() {
  const auto add = [&](ir::ValId val) {
    if (is_float(dtype(val)) && num_elements(shape(val)) > 0) made_.looked_at.push_back(val);
  };
  const auto allocate = [&](std::size_t bytes, const char* label) {
    return accelerator_.allocate(bytes, label);
  };
  if (device_options_.look) {
    for (const ir::Input& input : fusion_.inputs()) add(input.val);
    for (const SegmentedGroup& group : compiled_.groups())
      if (compiled_.segmented().domain(group.id).kind != GroupKind::kView)
        for (const ir::ValId output : group.boundary.outputs) add(output);
  }
  if (!made_.looked_at.empty()) {
    const std::size_t bytes = made_.looked_at.size() * sizeof(std::int32_t);
    words_ = add_buffer(BufferSpec::Kind::kInOut, "words", bytes);
    made_.words = allocate(bytes, "words");
    fill({words_, DType::kI32, contiguous({1})}, 0, "no faults");
    for (const ir::Input& input : fusion_.inputs()) look(input.val);
  }
  if (!device_options_.keep) return;
  const compiler::Boundary& boundary = compiled_.groups()[device_options_.keep->index].boundary;
  for (const std::vector<ir::ValId>* vals : {&boundary.inputs, &boundary.outputs})
    for (const ir::ValId val : *vals) {
      const std::size_t bytes = std::max<std::size_t>(bytes_of(dtype(val), shape(val)), 1);
      kept_[val.index] = add_buffer(BufferSpec::Kind::kInOut, "kept", bytes);
      made_.kept.emplace_back(val, allocate(bytes, "kept"));
    }
}

void DevicePlanner::look(ir::ValId val) {
  const auto found = std::find(made_.looked_at.begin(), made_.looked_at.end(), val);
  if (found == made_.looked_at.end()) return;
  Ref word{words_, DType::kI32, contiguous({1})};
  word.layout.offset = found - made_.looked_at.begin();
  const Ref all = ref(val);
  add_library("look", look_launch(all.dtype, num_elements(all.layout.shape)), {all, word}, 1);
}

void DevicePlanner::keep(std::span<const ir::ValId> vals) {
  for (const ir::ValId val : vals)
    copy(ref(val), {kept_.at(val.index), dtype(val), contiguous(shape(val))}, "keep");
}

void DevicePlanner::plan_kernels(const SegmentedGroup& group) {
  const DeviceGroup& code = codes_[group.id.index];
  const std::vector<Ref> workspaces = open_group(group, code.workspaces);
  for (const ir::ValId output : group.boundary.outputs)
    if (!overwritten_by(output) && num_elements(shape(output)) == 0) touch(ref(output));
  const auto size = [&](const ir::Extent& extent) { return sizes_.of(extent); };
  for (const std::shared_ptr<const DeviceKernel>& kernel : code.kernels) {
    if (sizes_.of(kernel->launch.outer_count) == 0) continue;
    StepOperands operands;
    std::vector<Ref> refs;
    std::size_t next = 0;
    for (const compiler::loop::KernelBuffer& buffer : kernel->kernel.kernel.buffers) {
      if (buffer.kind == compiler::loop::KernelBuffer::Kind::kRow) continue;
      const compiler::Operand& operand = kernel->kernel.operands[next++];
      refs.push_back(operand.val.valid() ? ref(operand.val) : workspaces[operand.workspace]);
      if (buffer.kind == compiler::loop::KernelBuffer::Kind::kInput)
        operands.read(refs.back());
      else
        operands.write(refs.back());
    }
    const std::vector<void*> nowhere(refs.size(), nullptr);
    Launch launch{kernel->code,
                  {{kernel->launch.blocks(size), 1, 1},
                   {kernel->launch.threads, kernel->launch.rows_at_once, 1},
                   kernel->launch.shared_bytes(size)},
                  kernel->launch.argument(nowhere, size, nullptr),
                  {}};
    if (!kernel->kernel.kernel.checks.empty()) {
      refs.push_back(status_word(kernel->kernel.kernel.checks));
      operands.write(refs.back());
    }
    for (std::size_t i = 0; i < refs.size(); ++i)
      launch.patches.push_back({i < next ? i : launch.words.size() - 1, operands.of(refs[i])});
    add_launch(fmt::format("{} of {}", kernel->kernel.kernel.name, group.exprs.size()), operands,
               std::move(launch));
  }
}

void DevicePlanner::before_group(const SegmentedGroup& group) {
  if (device_options_.keep == group.id) keep(group.boundary.inputs);
}

void DevicePlanner::after_group(const SegmentedGroup& group, GroupKind kind) {
  if (device_options_.keep == group.id) keep(group.boundary.outputs);
  if (!device_options_.look || kind == GroupKind::kView) return;
  for (const ir::ValId output : group.boundary.outputs) look(output);
}

DevicePlan DevicePlanner::run(std::span<const DeviceGroup> groups) {
  codes_ = groups;
  plan_inputs();
  plan_looks();
  plan_groups(compiled_);
  plan_outputs();
  if (!made_.checks.empty()) {
    made_.status = accelerator_.allocate(kMaxChecks * sizeof(std::int32_t), "status");
    accelerator_.executor().fill(accelerator_.streams()[0], made_.status, 0);
  }
  made_.output_shapes = std::move(result_.output_shapes);
  made_.in_place = std::move(result_.in_place);
  made_.times = std::move(result_.times);
  const std::span<const runtime::StreamId> streams = accelerator_.streams();
  made_.runner = std::make_unique<runtime::PlanRunner>(
      std::move(result_.plan), std::move(result_.functions), accelerator_.heap(),
      accelerator_.executor(), std::vector<runtime::StreamId>(streams.begin(), streams.end()));
  return std::move(made_);
}

DevicePlan make_device_plan(DeviceKernels& fusion, Accelerator& accelerator, DeviceCrf& crf,
                            std::span<const Tensor> inputs, const DevicePlanOptions& options) {
  std::vector<Shape> shapes;
  for (const Tensor& input : inputs) shapes.push_back(input.shape());
  ir::Sizes sizes;
  const std::vector<DeviceGroup> groups = fusion.prepare(shapes, sizes);
  return DevicePlanner(fusion, sizes, accelerator, crf, options).run(groups);
}

}  // namespace segfuse::engine
