#pragma once
// The one way from a Fusion to kernels: passes, groups, a schedule for the sizes at hand, loops,
// and their text in the target's language. Other modules include this header and autodiff.h, and
// none else of the compiler (tools/layers.toml).

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiler/codegen/c_program/print_program.h"
#include "compiler/codegen/cuda/launch.h"
#include "compiler/lower/lower.h"
#include "compiler/passes/pass.h"
#include "compiler/schedule/schedule.h"
#include "compiler/segment/report.h"
#include "ir/bind.h"

namespace segfuse::compiler {

/// A target, and sizes like those to come.
struct CompileOptions {
  Target target = Target::kCpu;
  SizeHints hints = {};
  /// Kernels round 16-bit values where they store them and where the program casts to them, not
  /// after each operation.
  bool excess_precision = false;
  /// Attention is written out as products and a softmax; else for CUDA what has no kernel is.
  bool attention_written_out = false;
};

/// A group's kernels under one schedule.
struct ScheduledGroup {
  Schedule schedule;
  LoweredGroup lowered;
};

/// A Fusion after all passes, cut into groups that are lowered as they are requested. One thread at
/// a time.
class CompiledFusion {
 public:
  /// The program of segmented() is another than `fusion`, with the same inputs, outputs and symbols
  /// by position.
  explicit CompiledFusion(ir::Fusion fusion, CompileOptions options = {});
  ~CompiledFusion();
  CompiledFusion(const CompiledFusion&) = delete;
  CompiledFusion& operator=(const CompiledFusion&) = delete;

  const CompileOptions& options() const { return options_; }
  const SegmentedFusion& segmented() const { return segmented_; }
  const std::vector<SegmentedGroup>& groups() const { return groups_; }
  /// That of segmented(), with the sizes that the groups lowered so far need: what input shapes are
  /// bound to.
  const ir::Fusion& fusion() const { return fusion_; }
  /// Neither a view nor a library call: only such groups have a space and can be lowered.
  bool has_kernels(GroupId group) const;
  const Space& space(GroupId group);

  /// The group under the schedule that is chosen for these sizes; it lives as long as this.
  /// fusion() may get new sizes: those that were bound before have to be bound again.
  const ScheduledGroup& lower(GroupId group, const ir::Sizes& sizes);
  /// For sizes as the hints say.
  const ScheduledGroup& lower(GroupId group);

  /// Gives a kernel's schedule what depends on the sizes alone and not on their class.
  void fit(loop::Kernel& kernel, const ir::Sizes& sizes) const;
  void fit(loop::Kernel& kernel) const;
  /// A kernel in the target's language, complete.
  std::string print(const loop::Kernel& kernel) const;
  /// The same without the functions that a C kernel needs before it.
  std::string print_function(const loop::Kernel& kernel) const;

 private:
  struct Group;
  Group& group(GroupId id);
  const ScheduledGroup& lower(Group& group, const std::vector<std::int64_t>& lengths);
  void fit(loop::Kernel& kernel, const std::function<std::int64_t(const ir::Extent&)>& size) const;

  CompileOptions options_;
  SegmentedFusion segmented_;
  std::vector<SegmentedGroup> groups_;
  ir::Fusion fusion_;
  std::vector<std::unique_ptr<Group>> made_;  ///< by group; when first asked for
};

/// The type of an element in CUDA C++, for kernels that are written by hand: in memory, as a value,
/// and what an `x` of the one is as the other, rounded.
struct CudaElement {
  std::string stored, value, load, store;
};
CudaElement cuda_element(DType dtype);
/// Such a kernel behind the functions of printed kernels that it names: complete.
std::string complete_cuda(const std::string& code);

}  // namespace segfuse::compiler
