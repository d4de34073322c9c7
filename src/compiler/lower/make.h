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
    /// The one more outer axis comes before the others.
    bool extra_first = false;
    int lane = -1;  ///< axis whose tiles are outer iterations; -1: none
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
  /// A tile that open() opened.
  struct Tile {
    loop::VarId var;
    loop::Index begin, count;
    loop::Index inside;  ///< the variable, from the tile's beginning
  };
  const Tile& lane() const { return lane_; }
  const Tile& serial() const { return serial_; }
  /// Row-major position among these axes.
  loop::Index linear(const std::vector<std::size_t>& axes) const;

 private:
  const Making& making_;
  Walker& walker_;
  Tuple at_;
  loop::Index extra_;
  Tile lane_, serial_;
  int opened_ = 0;
};

/// A matrix in memory: element (i, j) is at `begin` + i + j * step, where i and j run along two
/// variables.
struct Matrix {
  loop::Index begin;
  ir::Extent step;
};
/// The matrix that `linear` goes through, from the beginnings of the variables' ranges; nothing if
/// neighbours along `unit` are not neighbours in memory, or if it is not known outside of all loops
/// where it begins.
std::optional<Matrix> matrix_of(Emitter& e, const loop::Index& linear, loop::VarId unit,
                                const loop::Index& unit_begin, loop::VarId other,
                                const loop::Index& other_begin);

/// Where a request loads from; nothing if it does not, or under conditions.
std::optional<loop::Index> position_of(const GroupState& group, Emitter& e, const Request& request);

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

/// The axes in the roles that they have when rows are walked over.
struct RowAxes {
  explicit RowAxes(const Making& making, const std::vector<std::size_t>& absent = {});

  std::vector<std::size_t> parallel;  ///< without the lanes' axis
  std::vector<std::size_t> walked;    ///< the same; one after the other, outermost first
  int lane = -1;
  bool lane_walked = false;  ///< the lanes' axis is reduced
  bool across = false;       ///< lanes run along another axis than the innermost
  /// Nothing is reduced, lanes run across, and the innermost axis is walked by each lane.
  bool inner_walked = false;
};

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
/// States in memory, [before, parts, after].
struct States {
  ir::Extent before, parts, after;
};
/// A kernel that joins Schedule::joined parts after another into one: [before, groups, after].
StateMemory join_some(Making& making, const std::vector<std::size_t>& reductions,
                      const StateMemory& from, const States& states, ir::Extent& groups);
/// The schedule of kernels that join states on a GPU, lanes along `after`.
void join_by_columns(Schedule& schedule);
void make_row_col_kernels(Making& making, const std::vector<std::size_t>& results);
void make_transpose_kernel(Making& making, const std::vector<std::size_t>& results);

}  // namespace segfuse::compiler
