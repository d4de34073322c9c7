#include "compiler/compile.h"

#include <utility>

#include "compiler/attention.h"
#include "compiler/codegen/cpu/print_c.h"
#include "compiler/codegen/cuda/prelude.h"
#include "compiler/codegen/cuda/print_cuda.h"
#include "compiler/codegen/cuda/scalars.h"
#include "compiler/schedule/choose.h"
#include "compiler/segment/segmenter.h"

namespace segfuse::compiler {

struct CompiledFusion::Group {
  GroupLowering lowering;
  std::map<Schedule, ScheduledGroup> schedules;
};

namespace {

SegmentedFusion cut(ir::Fusion fusion, const CompileOptions& options) {
  if (options.attention_written_out)
    write_attention_out(fusion);
  else if (options.target == Target::kCuda)
    write_large_attention_out(fusion);
  run_passes(fusion);
  return segment(std::move(fusion), {.hints = options.hints});
}

}  // namespace

CompiledFusion::CompiledFusion(ir::Fusion fusion, CompileOptions options)
    : options_(std::move(options)),
      segmented_(cut(std::move(fusion), options_)),
      groups_(segmented_.groups()),
      fusion_(segmented_.fusion()),
      made_(groups_.size()) {}
CompiledFusion::~CompiledFusion() = default;

bool CompiledFusion::has_kernels(GroupId group) const {
  const GroupKind kind = segmented_.domain(group).kind;
  return kind != GroupKind::kView && kind != GroupKind::kLibrary;
}

CompiledFusion::Group& CompiledFusion::group(GroupId id) {
  std::unique_ptr<Group>& made = made_.at(id.index);
  if (!made) {
    const IterationDomain& domain = segmented_.domain(id);
    made.reset(
        new Group{{fusion_, groups_[id.index], domain, segmented_.in_place, segmented_.hints(),
                   function_name(domain.kind), options_.excess_precision},
                  {}});
  }
  return *made;
}

const Space& CompiledFusion::space(GroupId id) { return group(id).lowering.space(); }

const ScheduledGroup& CompiledFusion::lower(Group& group,
                                            const std::vector<std::int64_t>& lengths) {
  const auto choose = options_.target == Target::kCuda ? choose_cuda : choose_cpu;
  const Schedule schedule = choose(group.lowering.space(), lengths);
  const auto known = group.schedules.find(schedule);
  if (known != group.schedules.end()) return known->second;
  ScheduledGroup scheduled{schedule, group.lowering.lower(schedule)};
  return group.schedules.emplace(schedule, std::move(scheduled)).first->second;
}

const ScheduledGroup& CompiledFusion::lower(GroupId id, const ir::Sizes& sizes) {
  std::vector<std::int64_t> lengths;
  for (const SpaceAxis& axis : space(id).axes) lengths.push_back(sizes.of(axis.extent));
  return lower(group(id), lengths);
}

const ScheduledGroup& CompiledFusion::lower(GroupId id) {
  std::vector<std::int64_t> lengths;
  for (const SpaceAxis& axis : space(id).axes) lengths.push_back(axis.hint);
  return lower(group(id), lengths);
}

void CompiledFusion::fit(loop::Kernel& kernel,
                         const std::function<std::int64_t(const ir::Extent&)>& size) const {
  if (options_.target == Target::kCuda) cuda::fit_to_sizes(kernel, size);
}

void CompiledFusion::fit(loop::Kernel& kernel, const ir::Sizes& sizes) const {
  fit(kernel, [&](const ir::Extent& extent) { return sizes.of(extent); });
}

void CompiledFusion::fit(loop::Kernel& kernel) const {
  const SegmentContext sizes(fusion_, segmented_.hints());
  fit(kernel, [&](const ir::Extent& extent) { return sizes.value_of(extent); });
}

std::string CompiledFusion::print(const loop::Kernel& kernel) const {
  return options_.target == Target::kCuda ? cuda::print_cuda(kernel) : cpu::print_c(kernel);
}

std::string CompiledFusion::print_function(const loop::Kernel& kernel) const {
  return options_.target == Target::kCuda ? cuda::print_cuda(kernel)
                                          : cpu::print_c_function(kernel, kernel.name);
}

CudaElement cuda_element(DType dtype) {
  const std::string rounded = dtype == DType::kBF16  ? "round_bf16(x)"
                              : dtype == DType::kF16 ? "round_f16(x)"
                                                     : "x";
  return {cuda::stored_type(dtype), cuda::value_type(dtype), cuda::from_stored(dtype, "x"),
          cuda::to_stored(dtype, rounded)};
}

std::string complete_cuda(const std::string& code) {
  const cuda::Prelude prelude = cuda::prelude_for(code);
  return prelude.machine + prelude.plain + code;
}

}  // namespace segfuse::compiler
