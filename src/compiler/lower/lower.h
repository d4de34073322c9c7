#pragma once
// From a group and its iteration domain to kernels: which loops there are, what they load, compute
// and store. docs/lowering.md shows them.

#include <memory>
#include <string>
#include <vector>

#include "compiler/loop/kernel.h"
#include "compiler/segment/segmented_fusion.h"

namespace segfuse::compiler {

/// Memory of a group that lives from its first kernel to its last.
struct Workspace {
  std::string name;
  DType dtype = DType::kF32;
  ir::Extent elements;
};

/// What a kernel's global buffer is: the memory of a value, or a workspace of the group.
struct Operand {
  ir::ValId val;                ///< invalid for a workspace
  std::uint32_t workspace = 0;  ///< position in LoweredGroup::workspaces
};

struct GroupKernel {
  loop::Kernel kernel;
  std::vector<Operand> operands;  ///< by global buffer, in the order of Kernel::buffers
};

/// Kernels run one after the other.
struct LoweredGroup {
  std::vector<GroupKernel> kernels;
  std::vector<Workspace> workspaces;
};

/// One axis of the kernels' iteration space.
struct SpaceAxis {
  enum class Role : std::uint8_t {
    kParallel,  ///< kept by all results
    kReduced,   ///< reduced by every reduction; of a kRowCol the rows'
    kColumn,    ///< reduced by the other reductions of a kRowCol
  };
  ir::Extent extent;
  Role role = Role::kParallel;
  std::int64_t hint = 1;  ///< about how long it is
};

/// What schedules are chosen by: the iteration space when axes that are always run along together
/// have become one, outermost first.
struct Space {
  GroupKind kind = GroupKind::kPointwise;
  std::vector<SpaceAxis> axes;
  /// The axis that is innermost in memory, -1 if there is none; of a transposition that of what is
  /// written, and `cross` that of what is read.
  int inner = -1;
  int cross = -1;
  int phases = 1;          ///< walks over a row that follow one another
  int reductions = 0;      ///< states that are carried along a walk
  int column_sums = 0;     ///< of a kRowCol: states for every column
  int loads = 0;           ///< values loaded over the whole space
  int widest = 4;          ///< bytes of the widest element loaded or stored over the whole space
  int narrowest = 4;       ///< of the narrowest
  bool expensive = false;  ///< exponentials and the like are needed in more than one walk
  /// Rows begin at multiples of this many elements, as far as sizes are numbers; 1: anywhere.
  int aligned = 1;
};

struct GroupAnalysis;

/// A group prepared for lowering: classification done, axes collapsed.
class GroupLowering {
 public:
  /// `fusion` gets new derived sizes (floordiv); nothing else in it changes. It, the group and the
  /// domain must stay where they are. `in_place` as SegmentedFusion has it. With `excess_precision`
  /// 16-bit values are rounded where the group stores them and where the program casts to them;
  /// without, after each operation, as the IR says.
  GroupLowering(ir::Fusion& fusion, const SegmentedGroup& group, const IterationDomain& domain,
                std::vector<ir::Alias> in_place, const SizeHints& hints, std::string name,
                bool excess_precision = false);
  ~GroupLowering();

  const Space& space() const;
  /// Kernels for a group that is neither kLibrary nor kView. The schedule changes speed and last
  /// digits only; a schedule that does not fit the group is replaced by the nearest one that does.
  LoweredGroup lower(const Schedule& schedule) const;

 private:
  std::unique_ptr<GroupAnalysis> analysis_;
};

/// The name of a group's kernels: equal kernels have equal names, so that their texts are equal.
std::string function_name(GroupKind kind);

}  // namespace segfuse::compiler
