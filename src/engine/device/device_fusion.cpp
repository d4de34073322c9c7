#include "engine/device/device_fusion.h"

#include <atomic>
#include <exception>
#include <thread>
#include <tuple>

#include "compiler/inputs.h"
#include "compiler/passes/pass.h"
#include "compiler/schedule/choose.h"
#include "compiler/segment/segmenter.h"

namespace segfuse::engine {

using compiler::LoweredGroup;
using compiler::PlanKind;
using compiler::SegmentedGroup;

namespace {

compiler::SegmentedFusion cut(ir::Fusion fusion) {
  compiler::run_passes(fusion);
  return compiler::segment(std::move(fusion));
}

bool has_kernels(PlanKind kind) { return kind != PlanKind::kView && kind != PlanKind::kLibrary; }

}  // namespace

struct DeviceFusion::Lowering {
  /// Which kernel of the group, and what was fitted to sizes.
  using Variant = std::pair<std::size_t, compiler::Schedule>;
  struct Scheduled {
    LoweredGroup lowered;
    std::map<Variant, std::shared_ptr<DeviceKernel>> kernels;
  };

  Lowering(ir::Fusion& fusion, const SegmentedGroup& group,
           const compiler::SegmentedFusion& segmented, bool excess_precision)
      : lowering(fusion, group, segmented.plan(group.id), segmented.in_place, segmented.hints(),
                 compiler::function_name(segmented.plan(group.id).kind), excess_precision) {}

  compiler::GroupLowering lowering;
  std::map<compiler::Schedule, Scheduled> schedules;
  Scheduled* last = nullptr;  ///< of the sizes that are being prepared
};

/// A kernel to be compiled.
struct DeviceFusion::Pending {
  std::shared_ptr<DeviceKernel> kernel;
  runtime::GpuProgram program;
  std::exception_ptr error;
};

DeviceFusion::DeviceFusion(ir::Fusion fusion, std::shared_ptr<runtime::Gpu> gpu,
                           bool excess_precision)
    : excess_precision_(excess_precision),
      segmented_(cut(std::move(fusion))),
      groups_(segmented_.groups()),
      fusion_(segmented_.fusion()),
      gpu_(std::move(gpu)),
      lowerings_(groups_.size()) {}
DeviceFusion::~DeviceFusion() = default;

/// Makes loop IR for the class of these sizes. New sizes may appear in fusion_.
const LoweredGroup& DeviceFusion::lowered(compiler::GroupId group, const ir::Sizes& sizes) {
  std::unique_ptr<Lowering>& made = lowerings_.at(group.index);
  if (!made)
    made = std::make_unique<Lowering>(fusion_, groups_[group.index], segmented_, excess_precision_);
  const compiler::Space& space = made->lowering.space();
  std::vector<std::int64_t> lengths;
  for (const compiler::SpaceAxis& axis : space.axes) lengths.push_back(sizes.of(axis.extent));
  const compiler::Schedule schedule = compiler::choose_cuda(space, lengths);
  auto found = made->schedules.find(schedule);
  if (found == made->schedules.end()) {
    Lowering::Scheduled fresh{made->lowering.lower(schedule),
                              {}};  // or there is none, if that fails
    found = made->schedules.emplace(schedule, std::move(fresh)).first;
  }
  made->last = &found->second;
  return found->second.lowered;
}

/// On as many threads as the machine has: each text takes the compiler about a fifth of a second.
/// Of equal texts one is compiled, and the others find it.
void DeviceFusion::compile(std::vector<Pending>& pending) {
  std::map<std::string_view, std::size_t> seen;
  std::vector<std::size_t> texts;
  for (std::size_t i = 0; i < pending.size(); ++i)
    if (seen.emplace(pending[i].program.source, i).second) texts.push_back(i);
  const auto find = [&](Pending& one) {
    compiler::loop::Kernel& kernel = one.kernel->kernel.kernel;
    one.kernel->code = gpu_->kernel(one.program, kernel.name);
    if (kernel.schedule.resident == 1 || gpu_->local_bytes(one.kernel->code) == 0) return;
    // The guess at registers was too low for this one.
    kernel.schedule.resident = 1;
    one.program.source = compiler::cuda::print_cuda(kernel);
    one.kernel->code = gpu_->kernel(one.program, kernel.name);
  };
  std::atomic<std::size_t> next = 0;
  const auto work = [&] {
    for (std::size_t i = next++; i < texts.size(); i = next++) try {
        find(pending[texts[i]]);
      } catch (...) {
        pending[texts[i]].error = std::current_exception();
      }
  };
  const std::size_t most = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::jthread> threads;
  for (std::size_t i = 1; i < std::min(most, texts.size()); ++i) threads.emplace_back(work);
  work();
  threads.clear();
  for (const Pending& one : pending)
    if (one.error) std::rethrow_exception(one.error);
  for (Pending& one : pending) find(one);
  made_ += pending.size();
}

std::vector<DeviceGroup> DeviceFusion::prepare(std::span<const Tensor> inputs, ir::Sizes& sizes) {
  sizes = compiler::bind_inputs(fusion_, inputs);
  for (const SegmentedGroup& group : groups_)
    if (has_kernels(segmented_.plan(group.id).kind)) static_cast<void>(lowered(group.id, sizes));
  sizes = compiler::bind_inputs(fusion_, inputs);  // kernels may need sizes that follow from others

  std::vector<DeviceGroup> all(groups_.size());
  std::vector<Pending> pending;
  for (const SegmentedGroup& group : groups_) {
    if (!has_kernels(segmented_.plan(group.id).kind)) continue;
    Lowering::Scheduled& scheduled = *lowerings_[group.id.index]->last;
    DeviceGroup& result = all[group.id.index];
    result.workspaces = scheduled.lowered.workspaces;
    for (std::size_t i = 0; i < scheduled.lowered.kernels.size(); ++i) {
      compiler::GroupKernel kernel = scheduled.lowered.kernels[i];
      compiler::cuda::fit_to_sizes(kernel.kernel,
                                   [&](const ir::Extent& extent) { return sizes.of(extent); });
      std::shared_ptr<DeviceKernel>& known = scheduled.kernels[{i, kernel.kernel.schedule}];
      if (!known) {
        known = std::make_shared<DeviceKernel>();
        known->launch = compiler::cuda::cuda_launch(kernel.kernel);
        known->kernel = std::move(kernel);
        pending.push_back(
            {known,
             {known->kernel.kernel.name, compiler::cuda::print_cuda(known->kernel.kernel), {}},
             {}});
      }
      result.kernels.push_back(known);
    }
  }
  try {
    compile(pending);
  } catch (...) {  // what is not compiled is not there
    for (const auto& made : lowerings_)
      if (made)
        for (auto& [schedule, scheduled] : made->schedules)
          std::erase_if(scheduled.kernels,
                        [](const auto& entry) { return entry.second->code.handle == nullptr; });
    throw;
  }
  return all;
}

}  // namespace segfuse::engine
