#pragma once
// A Fusion cut into groups, and the machine code of each for the sizes that came so far.

#include <map>
#include <memory>
#include <string>
#include <vector>

#include "compiler/lower/lower.h"
#include "compiler/segment/segmented_fusion.h"
#include "ir/bind.h"
#include "jit/cpu_compiler.h"

namespace segfuse::engine {

/// One kernel ready to be called.
struct KernelCode {
  compiler::GroupKernel kernel;
  std::shared_ptr<const jit::CpuCode> code;
  jit::CpuFunction function = nullptr;
  std::vector<ir::Extent> sizes;  ///< the integer arguments
};

struct GroupCode {
  compiler::Schedule schedule;
  std::vector<KernelCode> kernels;
  std::vector<compiler::Workspace> workspaces;
};

/// The compiler that this process shares, so that equal kernels are compiled once: nothing, with
/// the reason, where there is none.
std::shared_ptr<jit::CpuCompiler> shared_cpu_compiler(std::string* reason = nullptr);

class CompiledFusion {
 public:
  /// Runs all passes and the segmenter. The fusion of segmented() is another than `fusion`, with
  /// the same inputs, outputs and symbols by position.
  CompiledFusion(ir::Fusion fusion, std::shared_ptr<jit::CpuCompiler> compiler,
                 bool excess_precision = false);
  ~CompiledFusion();

  const compiler::SegmentedFusion& segmented() const { return segmented_; }
  const std::vector<compiler::SegmentedGroup>& groups() const { return groups_; }
  /// The program with all sizes that kernels need: what input shapes are bound to.
  const ir::Fusion& fusion() const { return fusion_; }
  /// Code for a group that is neither a view nor a library call, for sizes of this class.
  const GroupCode& code(compiler::GroupId group, const ir::Sizes& sizes);
  /// Whether all sizes that the codes of `group` need are in fusion() for these sizes. code() adds
  /// them; sizes bound before have to be bound again.
  std::size_t symbols() const { return fusion_.storage().symbols.size(); }

 private:
  struct Lowering;
  bool excess_precision_;
  compiler::SegmentedFusion segmented_;
  std::vector<compiler::SegmentedGroup> groups_;
  ir::Fusion fusion_;
  std::shared_ptr<jit::CpuCompiler> compiler_;
  std::vector<std::unique_ptr<Lowering>> lowerings_;  // by group; made when first asked for
};

}  // namespace segfuse::engine
