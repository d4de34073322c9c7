#include <fmt/format.h>

#include <algorithm>

#include "compiler/lower/make.h"

namespace segfuse::compiler {

using ir::Extent;
using loop::For;
using loop::Index;
using loop::ValueId;
using loop::VarId;
using Role = SpaceAxis::Role;

namespace {

/// Rows in chunks: each outer iteration goes through some rows one after the other and keeps the
/// columns' states in row buffers; a second kernel joins them.
class RowColMaker {
 public:
  RowColMaker(Making& making, const std::vector<std::size_t>& results)
      : making_(making),
        group_(making.group),
        results_(results),
        parallel_(axes_of(group_.space, Role::kParallel)),
        columns_(axes_of(group_.space, Role::kColumn)),
        row_(axes_of(group_.space, Role::kReduced)) {
    lane_ =
        group_.space.inner >= 0 && std::binary_search(row_.begin(), row_.end(),
                                                      static_cast<std::size_t>(group_.space.inner))
            ? static_cast<std::size_t>(group_.space.inner)
            : row_.back();
    std::erase(row_, lane_);
    row_.push_back(lane_);
    for (std::size_t i = 0; i < group_.reductions.size(); ++i)
      (group_.reductions[i].column ? column_reductions_ : row_reductions_).push_back(i);
    rows_ = elements_of(group_.space, columns_);
    chunks_ = group_.ceil_divide(rows_, making.schedule.rows);
    length_ = elements_of(group_.space, row_);
    memory_ = making.add_states(column_reductions_,
                                elements_of(group_.space, parallel_) * chunks_ * length_);
  }

  void run() {
    make_rows();
    if (making_.schedule.joined > 0) {
      Extent groups;
      memory_ = join_some(making_, column_reductions_, memory_,
                          {elements_of(group_.space, parallel_), chunks_, length_}, groups);
      chunks_ = groups;
    }
    make_columns();
  }

 private:
  /// Registers are indexed by the lane alone: they hold rows of one axis.
  Hold hold() const {
    const Hold wanted = making_.schedule.hold;
    return wanted == Hold::kRegister && row_.size() > 1 ? Hold::kReread : wanted;
  }

  /// Position of a column's state: parallel axes, chunk, place in the row.
  Index state_at(loop::Indices& indices, const Frame& frame, const Index& chunk) const {
    const Index row = indices.add(indices.multiply(frame.linear(parallel_), chunks_), chunk);
    return indices.add(indices.multiply(row, length_), frame.linear(row_));
  }

  void open_row(Emitter& e) {
    for (std::size_t i = 0; i < row_.size(); ++i)
      e.open(i + 1 == row_.size() ? For::Kind::kLane : For::Kind::kSerial, vars_[i], 0,
             Index(group_.space.axes[row_[i]].extent));
  }
  void close_row(Emitter& e) const {
    for (std::size_t i = 0; i < row_.size(); ++i) e.close();
  }

  void make_rows() {
    GroupKernel unused;
    Walker trial(group_, unused);
    write_rows(trial, {});
    std::vector<Emitter::Held> held;
    if (hold() != Hold::kReread) held = std::move(held_);
    GroupKernel& kernel = making_.add_kernel();
    Walker walker(group_, kernel);
    walker.emitter.follow(trial.emitter);
    write_rows(walker, std::move(held));
    kernel.kernel.work = length_ * Extent(making_.schedule.rows);
  }

  void write_rows(Walker& walker, std::vector<Emitter::Held> held) {
    Emitter& e = walker.emitter;
    Frame frame(making_, walker);
    Frame::Loops loops;
    loops.outer = parallel_;
    loops.extra = chunks_;
    frame.open(loops);
    loop::Indices& indices = e.indices();
    const VarId row = indices.add_var("i", rows_);
    ir::Extents extents;
    for (const std::size_t axis : columns_) extents.push_back(group_.space.axes[axis].extent);
    const Tuple parts = unflatten(indices, indices.of(row), extents);
    for (std::size_t i = 0; i < columns_.size(); ++i) frame.set(columns_[i], parts[i]);
    vars_.clear();
    for (const std::size_t axis : row_) vars_.push_back(frame.walk(axis, "j"));
    frame.settle();
    place_ = frame.linear(row_);
    sum_place_ = sums_in_memory() ? state_at(indices, frame, frame.extra()) : place_;
    add_sums(walker);
    const Index begin = indices.multiply(frame.extra(), Extent(making_.schedule.rows));
    e.open(For::Kind::kSerial, row, begin,
           indices.minimum(indices.add(begin, Index(making_.schedule.rows)), Index(rows_)));
    e.held_depth = e.depth() + static_cast<int>(row_.size());
    e.held_at = place_;
    for (std::size_t i = 0; i < held.size(); ++i)
      held[i].buffer = e.row_buffer(fmt::format("h{}", i), held_types_[i], length_, hold(),
                                    making_.schedule.row);
    e.held = std::move(held);
    int last = 0;
    for (const auto& r : group_.reductions) last = std::max(last, r.walk + 1);
    for (const std::size_t i : results_) last = std::max(last, group_.results[i].level);
    for (int walk = 0; walk <= last; ++walk) step(walker, frame, walk);
    e.close();
    if (!sums_in_memory()) {
      open_row(e);
      for (std::size_t n = 0; n < column_reductions_.size(); ++n) {
        walker.set(column_reductions_[n], {e.load(sums_[n], sum_place_)});
        save(walker, making_, memory_, column_reductions_[n],
             state_at(indices, frame, frame.extra()));
      }
      close_row(e);
    }
    frame.close();
    choose_held(e, row);
    e.finish();
  }

  /// What rows share stays near by itself.
  static bool differs(loop::Indices& indices, const Request& request, VarId row) {
    return std::any_of(request.at.begin(), request.at.end(),
                       [&](const Index& at) { return indices.depends_on(at, row); });
  }

  void choose_held(Emitter& e, VarId row) {
    held_.clear();
    held_types_.clear();
    for (const Emitter::Seen& seen : e.seen) {
      const bool wanted = making_.schedule.target == Target::kCpu ? seen.expensive : seen.loaded;
      if (!wanted || seen.walks.size() < 2 || !differs(e.indices(), seen.request, row)) continue;
      held_.push_back({seen.request, {}, false});
      held_types_.push_back(seen.dtype);
    }
  }

  /// Whether the columns' states are where the next kernel finds them all the time: neither
  /// registers nor shared memory have room for a row of them.
  bool sums_in_memory() const {
    const Schedule& s = making_.schedule;
    return s.target == Target::kCuda && hold() == Hold::kReread && s.row == 0;
  }

  void add_sums(Walker& walker) {
    Emitter& e = walker.emitter;
    sums_.clear();
    const Hold where = hold() == Hold::kRegister ? Hold::kRegister : Hold::kScratch;
    for (std::size_t n = 0; n < column_reductions_.size(); ++n) {
      const SimpleReduction& r = group_.reductions[column_reductions_[n]];
      if (sums_in_memory()) {
        const std::uint32_t number = memory_[column_reductions_[n]][0];
        const Workspace& states = making_.out.workspaces[number];
        static_cast<void>(e.workspace(number, states, true));
        sums_.push_back(e.workspace(number, states, false));  // it is read, too
        continue;
      }
      sums_.push_back(
          e.row_buffer(fmt::format("c{}", n), r.dtype, length_, where, making_.schedule.row));
    }
    open_row(e);
    for (std::size_t n = 0; n < column_reductions_.size(); ++n) {
      const SimpleReduction& r = group_.reductions[column_reductions_[n]];
      e.store(sums_[n], sum_place_, e.constant(r.dtype, ir::identity(r.op, r.dtype)), {});
    }
    close_row(e);
  }

  void step(Walker& walker, Frame& frame, int walk) {
    Emitter& e = walker.emitter;
    std::vector<std::size_t> others = parallel_;
    others.insert(others.end(), columns_.begin(), columns_.end());
    std::vector<std::size_t> all = others;
    all.insert(all.end(), row_.begin(), row_.end());
    std::vector<std::size_t> rows;
    std::vector<std::size_t> columns;
    std::vector<const Result*> full;
    for (const std::size_t i : row_reductions_)
      if (group_.reductions[i].walk == walk) rows.push_back(i);
    for (std::size_t n = 0; n < column_reductions_.size(); ++n)
      if (group_.reductions[column_reductions_[n]].walk == walk) columns.push_back(n);
    for (const std::size_t i : results_) {
      const Result& result = group_.results[i];
      if (result.column || result.level != walk) continue;
      if (result.full) {
        full.push_back(&result);
      } else {
        walker.store(result, only_first(making_, frame, result, others));
      }
    }
    if (rows.empty() && columns.empty() && full.empty()) return;
    e.next_walk();
    for (const std::size_t i : rows) walker.begin(i);
    open_row(e);
    // All of a row is on its way at once, whichever walk needs it first.
    if (hold() == Hold::kRegister)
      for (std::size_t i = 0; i < e.held.size(); ++i)
        if (!e.held[i].stored && e.knows(e.held[i].request))
          static_cast<void>(e.eval(e.held[i].request));
    for (const std::size_t i : rows) walker.accumulate(i);
    for (const std::size_t n : columns) {
      const SimpleReduction& r = group_.reductions[column_reductions_[n]];
      const ValueId value = walker.operand(column_reductions_[n]);
      const ValueId before = e.load(sums_[n], sum_place_);
      e.store(sums_[n], sum_place_, e.compute(ir::joining(r.op), r.dtype, {before, value}), {});
    }
    for (const Result* result : full)
      walker.store(*result, only_first(making_, frame, *result, all));
    close_row(e);
    for (const std::size_t i : rows) walker.finish(i);
  }

  void make_columns() {
    GroupKernel& kernel = making_.add_kernel();
    // On a GPU a lane waits for memory, not for additions.
    std::int64_t tile = making_.schedule.tile;
    if (making_.schedule.target == Target::kCuda) {
      join_by_columns(kernel.kernel.schedule);
      tile = kernel.kernel.schedule.tile;
    }
    Walker walker(group_, kernel);
    Emitter& e = walker.emitter;
    Frame frame(making_, walker);
    Frame::Loops loops;
    loops.outer = parallel_;
    loops.outer.insert(loops.outer.end(), row_.begin(), row_.end() - 1);
    loops.lane = static_cast<int>(lane_);
    loops.tile = tile;
    frame.open(loops);
    frame.settle();
    for (const std::size_t i : column_reductions_) walker.begin(i);
    const VarId chunk = e.indices().add_var("s", chunks_);
    e.open(For::Kind::kSerial, chunk, 0, Index(chunks_));
    for (const std::size_t i : column_reductions_)
      walker.accumulate(i,
                        restore(walker, making_, memory_, i,
                                state_at(e.indices(), frame, e.indices().of(chunk)))[0],
                        0);
    e.close();
    for (const std::size_t i : column_reductions_) walker.finish(i);
    std::vector<std::size_t> all = parallel_;
    all.insert(all.end(), row_.begin(), row_.end());
    for (const std::size_t i : results_)
      if (const Result& result = group_.results[i]; result.column)
        walker.store(result, only_first(making_, frame, result, all));
    frame.close();
    e.finish();
    kernel.kernel.work = chunks_ * Extent(tile);
  }

  Making& making_;
  const GroupState& group_;
  const std::vector<std::size_t>& results_;
  std::vector<std::size_t> parallel_;
  std::vector<std::size_t> columns_;
  std::vector<std::size_t> row_;  ///< the lanes' axis last
  std::size_t lane_ = 0;
  std::vector<std::size_t> row_reductions_;
  std::vector<std::size_t> column_reductions_;
  Extent rows_;
  Extent chunks_;
  Extent length_;
  StateMemory memory_;
  std::vector<VarId> vars_;  // by row_
  Index place_;              // in the row
  Index sum_place_;          // of a column's state
  std::vector<loop::BufferId> sums_;
  std::vector<Emitter::Held> held_;
  std::vector<DType> held_types_;
};

}  // namespace

void make_row_col_kernels(Making& making, const std::vector<std::size_t>& results) {
  RowColMaker(making, results).run();
}

}  // namespace segfuse::compiler
