#pragma once
// Kernels of one group under one schedule.

#include <vector>

#include "compiler/lower/walker.h"

namespace segfuse::compiler {

/// Where the state of a reduction is, by number: workspaces for the value and, of an argmax, its
/// position. Empty: not there.
using StateMemory = std::vector<std::vector<std::uint32_t>>;

/// What every maker of kernels needs.
struct Making {
  const GroupState& group;
  const Schedule& schedule;
  LoweredGroup& out;
  StateMemory finished;  ///< where they are when this kernel is over, by parallel position
  StateMemory there;     ///< those of them that are there already

  GroupKernel& add_kernel() const;
  /// Workspaces for the states of these reductions, with that many elements.
  StateMemory add_states(const std::vector<std::size_t>& reductions,
                         const ir::Extent& elements) const;
};

/// A kernel's outer loop and its lanes, opened.
class Frame {
 public:
  Frame(const Making& making, Walker& walker);

  struct Loops {
    std::vector<std::size_t> outer;  ///< axes that are taken apart from the outer variable
    int lane = -1;                   ///< axis whose tiles are outer iterations; -1: none
    std::int64_t tile = 1;
    int serial = -1;  ///< the same for a serial loop around the lanes'
    std::int64_t serial_tile = 1;
    ir::Extent extra = 1;  ///< one more outer axis
  };
  void open(const Loops& loops);
  void close();  ///< what open() opened

  /// Gives an axis a variable; it is at that variable from then on.
  loop::VarId walk(std::size_t axis, const char* name);
  void set(std::size_t axis, loop::Index at) { at_[axis] = std::move(at); }
  /// Tells the walker where the kernel is.
  void settle();
  const loop::Index& at(std::size_t axis) const { return at_[axis]; }
  const loop::Index& extra() const { return extra_; }
  /// Row-major position among these axes.
  loop::Index linear(const std::vector<std::size_t>& axes) const;

 private:
  const Making& making_;
  Walker& walker_;
  Tuple at_;
  loop::Index extra_;
  int opened_ = 0;
};

std::vector<std::size_t> axes_of(const Space& space, SpaceAxis::Role role);
ir::Extent elements_of(const Space& space, const std::vector<std::size_t>& axes);
/// Conditions under which the first of several equal stores is done: along these axes the output
/// does not run.
std::vector<loop::Within> only_first(const Making& making, const Frame& frame, const Result& result,
                                     const std::vector<std::size_t>& axes);
/// Stores or loads what a reduction has come to.
void save(Walker& walker, const Making& making, const StateMemory& memory, std::size_t number,
          const loop::Index& at);
std::vector<loop::ValueId> restore(Walker& walker, const Making& making, const StateMemory& memory,
                                   std::size_t number, const loop::Index& at);

/// Reductions and results of one kernel that walks over rows.
struct WalkKernel {
  std::vector<std::size_t> reductions;
  std::vector<std::size_t> results;
  std::vector<std::size_t> absent = {};  ///< parallel axes along which nothing here runs
  bool keep = false;                     ///< finished reductions are stored, for kernels that come
};

/// One walk after the other over each row.
void make_walk_kernel(Making& making, const WalkKernel& what);
/// The same with rows in parts, joined by a second kernel. All reductions are of one walk.
void make_split_kernels(Making& making, const WalkKernel& what);
/// Results once all reductions that they need are finished by other kernels; all run along just
/// these axes.
void make_result_kernel(Making& making, const std::vector<std::size_t>& results,
                        const std::vector<std::size_t>& axes);
void make_row_col_kernels(Making& making, const std::vector<std::size_t>& results);
void make_transpose_kernel(Making& making, const std::vector<std::size_t>& results);

}  // namespace segfuse::compiler
