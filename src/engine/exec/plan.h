#pragma once
// The plan of a Fusion on the CPU for one set of input shapes.

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "base/thread_pool.h"
#include "engine/exec/groups.h"
#include "engine/plan/builder.h"
#include "plan/placement.h"

namespace segfuse::engine {

class Accelerator;
class SemicrfOps;
class CpuKernels;

/// State that the steps of all runs share. It outlives the plans.
struct CpuContext {
  ThreadPool& pool;
  SemicrfOps& semicrf;
};

/// Which of a step's addresses is a buffer's.
class StepBuffers {
 public:
  explicit StepBuffers(const StepOperands& operands);
  std::size_t position(std::uint32_t buffer) const;

 private:
  std::vector<std::pair<std::uint32_t, std::uint32_t>> positions_;  ///< ascending
};

/// A step while it runs.
struct Run {
  ThreadPool& pool;
  SemicrfOps& semicrf;
  std::span<std::byte* const> addresses;
  const StepBuffers& buffers;

  /// Valid as long as `ref`, which the step has declared.
  Array array(const Ref& ref) const {
    const std::int64_t shift = ref.layout.offset * static_cast<std::int64_t>(size_of(ref.dtype));
    return {addresses[buffers.position(ref.buffer)] + shift, &ref.layout, ref.dtype};
  }
};

/// Looks at what an expression made of its operands, after each step.
using StepCheck = std::function<void(ir::ExprId expr, std::span<const Ref> operands,
                                     std::span<const Ref> results, const Run& run)>;

struct CpuPlanOptions : PlanOptions {
  StepCheck check = {};
};

/// A plan and how it runs: in order over one arena, or on streams.
class CpuPlan {
 public:
  CpuPlan(BuiltPlan built, std::vector<std::byte> constants);

  const std::vector<Shape>& output_shapes() const { return built_.output_shapes; }
  const std::vector<std::optional<std::size_t>>& in_place() const { return built_.in_place; }
  const std::vector<std::shared_ptr<StepTime>>& times() const { return built_.times; }
  std::size_t arena_bytes() const { return placement_.arena_bytes; }

  /// `given`: the memory of all inputs, then of the outputs that are not written in place. `arena`
  /// has arena_bytes().
  void run(std::span<std::byte* const> given, std::byte* arena);
  /// The same on the streams of `host`, whose heap has the scratch memory; it is over when this
  /// returns. `host` outlives the plan.
  void run_on(Accelerator& host, std::span<std::byte* const> given);

 private:
  std::vector<runtime::Buffer> lend(Accelerator& host, std::span<std::byte* const> given);

  BuiltPlan built_;
  plan::Placement placement_;
  std::vector<std::byte> constants_;
  std::vector<std::byte*> bases_;                ///< by buffer, of the run
  std::vector<std::byte*> addresses_;            ///< of the step that runs
  std::unique_ptr<runtime::PlanRunner> runner_;  ///< on streams, when there was such a run
  std::vector<std::byte> empty_;                 ///< on streams: for operands without elements
};

/// Plans a run in built-in loops. `groups` are those of the Fusion; nothing is kept of it.
CpuPlan make_plan(const ir::Fusion& fusion, std::span<const Group> groups, const ir::Sizes& sizes,
                  const CpuContext& context, const CpuPlanOptions& options);

/// The same with generated kernels, for inputs of these shapes. Halves are stored as they are. The
/// plan holds the code, not the CpuKernels.
CpuPlan make_plan(CpuKernels& kernels, std::span<const Shape> inputs, const CpuContext& context,
                  const CpuPlanOptions& options);

}  // namespace segfuse::engine
