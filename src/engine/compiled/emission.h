#pragma once
// A program cut into groups and lowered for a target, one group after the other.

#include <functional>
#include <string>
#include <vector>

#include "compiler/lower/lower.h"
#include "engine/compiled/emit.h"

namespace segfuse::engine {

struct EmittedGroup {
  const compiler::SegmentedGroup& group;
  compiler::PlanKind kind;
  const compiler::Space* space = nullptr;  ///< nothing for views and library calls
  compiler::Schedule schedule;
  compiler::LoweredGroup lowered;
};

class Emission {
 public:
  Emission(const ir::Fusion& source, const EmitFor& how);

  void each(const std::function<void(EmittedGroup&)>& visit);

  const compiler::SegmentedFusion& segmented() const { return segmented_; }
  /// That of segmented(), with the sizes that the groups visited so far need.
  const ir::Fusion& fusion() const { return fusion_; }
  /// "'x'" of an input or a named output, else "%7".
  std::string name(ir::ValId val) const;
  /// "b0 = 'x', b1 = %7, w2 = workspace 0"
  std::string operands(const compiler::GroupKernel& kernel) const;
  /// "[B, 256 reduced innermost]"
  std::string describe(const compiler::Space& space) const;

 private:
  compiler::Target target_;
  bool excess_precision_;
  compiler::SegmentedFusion segmented_;
  ir::Fusion fusion_;
};

}  // namespace segfuse::engine
