#pragma once
// Kernels of one group under one schedule. docs/lowering.md shows the loops that each maker writes.

#include <vector>

#include "compiler/lower/kernel_writer.h"

namespace segfuse::compiler {

/// The workspaces that hold the state of a reduction, by its number: one for the value and, of an
/// argmax, one for its position. None: the state is not in memory.
using StateWorkspaces = std::vector<std::vector<std::uint32_t>>;

/// A group, how it is lowered, and the kernels so far.
struct Lowering {
  Lowering(const GroupAnalysis& analysis, const Schedule& chosen, LoweredGroup& lowered)
      : group(analysis),
        schedule(chosen),
        out(lowered),
        finished(group.reductions.size()),
        ready(group.reductions.size()) {}

  const GroupAnalysis& group;
  const Schedule& schedule;
  LoweredGroup& out;
  StateWorkspaces finished;  ///< results of reductions after the kernel, by parallel position
  StateWorkspaces ready;     ///< those that kernels before it have stored

  GroupKernel& add_kernel() const;
  /// Workspaces for the states of these reductions, with that many elements.
  StateWorkspaces add_states(const std::vector<std::size_t>& reductions,
                             const ir::Extent& elements) const;
};

/// The loops of one kernel around its walks: the outer loop, and tiles of lanes if these run along
/// a parallel axis. Knows where each axis of the Space is.
class LoopNest {
 public:
  LoopNest(const Lowering& lowering, KernelWriter& writer);

  struct Loops {
    std::vector<std::size_t> outer;  ///< axes that the outer loop runs along, as one
    bool extra_first = false;        ///< `extra` is the outermost of them, not the innermost
    int lane = -1;                   ///< axis whose tiles are outer iterations; -1: none
    std::int64_t tile = 1;
    int serial = -1;  ///< the same for a serial loop around the lanes'
    std::int64_t serial_tile = 1;
    ir::Extent extra = 1;  ///< one more outer axis: parts of a row, chunks of rows
  };
  void open(const Loops& loops);
  void close();  ///< what open() opened

  /// Gives an axis a variable; it is at that variable from then on.
  loop::VarId iterate(std::size_t axis, const char* name);
  void set(std::size_t axis, loop::Index at) { at_[axis] = std::move(at); }
  /// Tells the writer where the axes are now: after open(), iterate() and set().
  void update_coordinates();
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
  const Lowering& lowering_;
  KernelWriter& writer_;
  Coordinates at_;
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
std::optional<loop::Index> position_of(const GroupAnalysis& group, Emitter& e,
                                       const Request& request);

std::vector<std::size_t> axes_of(const Space& space, SpaceAxis::Role role);
ir::Extent elements_of(const Space& space, const std::vector<std::size_t>& axes);
/// An output that does not run along some of these axes would be stored at each of their positions:
/// conditions under which only the first is.
std::vector<loop::Within> only_first(const Lowering& lowering, const LoopNest& nest,
                                     const GroupResult& result,
                                     const std::vector<std::size_t>& axes);
/// Stores or loads the state of a reduction at a position of its workspaces.
void save(KernelWriter& writer, const Lowering& lowering, const StateWorkspaces& memory,
          std::size_t number, const loop::Index& at);
std::vector<loop::ValueId> restore(KernelWriter& writer, const Lowering& lowering,
                                   const StateWorkspaces& memory, std::size_t number,
                                   const loop::Index& at);

/// The axes in the roles that they have when rows are walked over.
struct RowAxes {
  explicit RowAxes(const Lowering& lowering, const std::vector<std::size_t>& absent = {});

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
void make_walk_kernel(Lowering& lowering, const WalkKernel& what);
/// The same with rows in parts, joined by a second kernel. All reductions are of one walk.
void make_split_kernels(Lowering& lowering, const WalkKernel& what);
/// Results once all reductions that they need are finished by other kernels; all run along just
/// these axes.
void make_result_kernel(Lowering& lowering, const std::vector<std::size_t>& results,
                        const std::vector<std::size_t>& axes);
/// Partial states lie in memory as [before, parts, after].
struct StateLayout {
  ir::Extent before, parts, after;
};
/// Accumulates partial states along a loop over `part`, from `begin` to `end`; `at` is where the
/// state of a part is.
void accumulate_parts(KernelWriter& writer, const Lowering& lowering,
                      const std::vector<std::size_t>& reductions, const StateWorkspaces& memory,
                      const loop::For& loop, const loop::Index& at);
/// A kernel that joins Schedule::joined parts after another into one: [before, groups, after].
StateWorkspaces join_some(Lowering& lowering, const std::vector<std::size_t>& reductions,
                          const StateWorkspaces& from, const StateLayout& states,
                          ir::Extent& groups);
/// The schedule of kernels that join states on a GPU, lanes along `after`.
void join_by_columns(Schedule& schedule);
void make_row_col_kernels(Lowering& lowering, const std::vector<std::size_t>& results);
void make_transpose_kernel(Lowering& lowering, const std::vector<std::size_t>& results);

}  // namespace segfuse::compiler
