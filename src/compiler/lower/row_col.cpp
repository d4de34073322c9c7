#include <fmt/format.h>

#include <algorithm>

#include "compiler/lower/kernel_makers.h"

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
  RowColMaker(Lowering& lowering, const std::vector<std::size_t>& results)
      : lowering_(lowering),
        group_(lowering.group),
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
    chunks_ = group_.ceil_divide(rows_, lowering.schedule.rows);
    length_ = elements_of(group_.space, row_);
    memory_ = lowering.add_states(column_reductions_,
                                  elements_of(group_.space, parallel_) * chunks_ * length_);
  }

  void run() {
    make_rows();
    if (lowering_.schedule.joined > 0) {
      Extent groups;
      memory_ = join_some(lowering_, column_reductions_, memory_,
                          {elements_of(group_.space, parallel_), chunks_, length_}, groups);
      chunks_ = groups;
    }
    make_columns();
  }

 private:
  /// Where rows are kept between walks. Registers are indexed by the lane alone, so they hold rows
  /// of one axis only.
  Hold hold() const {
    const Hold wanted = lowering_.schedule.hold;
    return wanted == Hold::kRegister && row_.size() > 1 ? Hold::kReread : wanted;
  }

  /// Position of a column's state: parallel axes, chunk, position in the row.
  Index state_at(loop::Indices& indices, const LoopNest& nest, const Index& chunk) const {
    const Index row = indices.add(indices.multiply(nest.linear(parallel_), chunks_), chunk);
    return indices.add(indices.multiply(row, length_), nest.linear(row_));
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
    KernelWriter dry_run(group_, unused);
    write_rows(dry_run, {});
    std::vector<Emitter::Cached> cached;
    if (hold() != Hold::kReread) cached = std::move(cached_);
    GroupKernel& kernel = lowering_.add_kernel();
    KernelWriter writer(group_, kernel);
    writer.emitter.share_indices(dry_run.emitter);
    write_rows(writer, std::move(cached));
    kernel.kernel.work = length_ * Extent(lowering_.schedule.rows);
  }

  void write_rows(KernelWriter& writer, std::vector<Emitter::Cached> cached) {
    Emitter& e = writer.emitter;
    LoopNest nest(lowering_, writer);
    LoopNest::Loops loops;
    loops.outer = parallel_;
    loops.extra = chunks_;
    nest.open(loops);
    loop::Indices& indices = e.indices();
    const VarId row = indices.add_var("i", rows_);
    ir::Extents extents;
    for (const std::size_t axis : columns_) extents.push_back(group_.space.axes[axis].extent);
    const Coordinates parts = unflatten(indices, indices.of(row), extents);
    for (std::size_t i = 0; i < columns_.size(); ++i) nest.set(columns_[i], parts[i]);
    vars_.clear();
    for (const std::size_t axis : row_) vars_.push_back(nest.iterate(axis, "j"));
    nest.update_coordinates();
    row_index_ = nest.linear(row_);
    sum_index_ = sums_in_memory() ? state_at(indices, nest, nest.extra()) : row_index_;
    add_sums(writer);
    const Index begin = indices.multiply(nest.extra(), Extent(lowering_.schedule.rows));
    e.open(For::Kind::kSerial, row, begin,
           indices.minimum(indices.add(begin, Index(lowering_.schedule.rows)), Index(rows_)));
    e.cache.depth = e.depth() + static_cast<int>(row_.size());
    e.cache.index = row_index_;
    for (std::size_t i = 0; i < cached.size(); ++i)
      cached[i].buffer = e.row_buffer(fmt::format("h{}", i), cached_types_[i], length_, hold(),
                                      lowering_.schedule.row);
    e.cache.values = std::move(cached);
    int last = 0;
    for (const auto& r : group_.reductions) last = std::max(last, r.walk + 1);
    for (const std::size_t i : results_) last = std::max(last, group_.results[i].walk);
    for (int walk = 0; walk <= last; ++walk) step(writer, nest, walk);
    e.close();
    if (!sums_in_memory()) {
      open_row(e);
      for (std::size_t n = 0; n < column_reductions_.size(); ++n) {
        writer.set(column_reductions_[n], {e.load(sums_[n], sum_index_)});
        save(writer, lowering_, memory_, column_reductions_[n],
             state_at(indices, nest, nest.extra()));
      }
      close_row(e);
    }
    nest.close();
    choose_cached(e, row);
    e.finish();
  }

  /// What does not differ from row to row stays in a cache by itself.
  static bool differs(loop::Indices& indices, const Request& request, VarId row) {
    return std::any_of(request.at.begin(), request.at.end(),
                       [&](const Index& at) { return indices.depends_on(at, row); });
  }

  void choose_cached(Emitter& e, VarId row) {
    cached_.clear();
    cached_types_.clear();
    for (const Emitter::Traced& one : e.trace) {
      const bool wanted = lowering_.schedule.target == Target::kCpu ? one.expensive : one.loaded;
      if (!wanted || one.walks.size() < 2 || !differs(e.indices(), one.request, row)) continue;
      cached_.push_back({one.request, {}, false});
      cached_types_.push_back(one.dtype);
    }
  }

  /// Whether the columns' states are where the next kernel finds them all the time: neither
  /// registers nor shared memory have room for a row of them.
  bool sums_in_memory() const {
    const Schedule& s = lowering_.schedule;
    return s.target == Target::kCuda && hold() == Hold::kReread && s.row == 0;
  }

  void add_sums(KernelWriter& writer) {
    Emitter& e = writer.emitter;
    sums_.clear();
    const Hold where = hold() == Hold::kRegister ? Hold::kRegister : Hold::kScratch;
    for (std::size_t n = 0; n < column_reductions_.size(); ++n) {
      const SimpleReduction& r = group_.reductions[column_reductions_[n]];
      if (sums_in_memory()) {
        const std::uint32_t number = memory_[column_reductions_[n]][0];
        const Workspace& states = lowering_.out.workspaces[number];
        static_cast<void>(e.workspace(number, states, true));
        sums_.push_back(e.workspace(number, states, false));  // it is read, too
        continue;
      }
      sums_.push_back(
          e.row_buffer(fmt::format("c{}", n), r.dtype, length_, where, lowering_.schedule.row));
    }
    open_row(e);
    for (std::size_t n = 0; n < column_reductions_.size(); ++n) {
      const SimpleReduction& r = group_.reductions[column_reductions_[n]];
      e.store(sums_[n], sum_index_, e.constant(r.dtype, ir::identity(r.op, r.dtype)), {});
    }
    close_row(e);
  }

  void step(KernelWriter& writer, LoopNest& nest, int walk) {
    Emitter& e = writer.emitter;
    std::vector<std::size_t> others = parallel_;
    others.insert(others.end(), columns_.begin(), columns_.end());
    std::vector<std::size_t> all = others;
    all.insert(all.end(), row_.begin(), row_.end());
    std::vector<std::size_t> rows;
    std::vector<std::size_t> columns;
    std::vector<const GroupResult*> full;
    for (const std::size_t i : row_reductions_)
      if (group_.reductions[i].walk == walk) rows.push_back(i);
    for (std::size_t n = 0; n < column_reductions_.size(); ++n)
      if (group_.reductions[column_reductions_[n]].walk == walk) columns.push_back(n);
    for (const std::size_t i : results_) {
      const GroupResult& result = group_.results[i];
      if (result.column || result.walk != walk) continue;
      if (result.full) {
        full.push_back(&result);
      } else {
        writer.store(result, only_first(lowering_, nest, result, others));
      }
    }
    if (rows.empty() && columns.empty() && full.empty()) return;
    e.next_walk();
    for (const std::size_t i : rows) writer.begin(i);
    open_row(e);
    // All of a row is on its way at once, whichever walk needs it first.
    if (hold() == Hold::kRegister)
      for (std::size_t i = 0; i < e.cache.values.size(); ++i)
        if (!e.cache.values[i].stored && e.has_coordinates_of(e.cache.values[i].request))
          static_cast<void>(e.eval(e.cache.values[i].request));
    for (const std::size_t i : rows) writer.accumulate(i);
    for (const std::size_t n : columns) {
      const SimpleReduction& r = group_.reductions[column_reductions_[n]];
      const ValueId value = writer.operand(column_reductions_[n]);
      const ValueId before = e.load(sums_[n], sum_index_);
      e.store(sums_[n], sum_index_, e.compute(ir::joining(r.op), r.dtype, {before, value}), {});
    }
    for (const GroupResult* result : full)
      writer.store(*result, only_first(lowering_, nest, *result, all));
    close_row(e);
    for (const std::size_t i : rows) writer.finish(i);
  }

  void make_columns() {
    GroupKernel& kernel = lowering_.add_kernel();
    // On a GPU a lane waits for memory, not for additions.
    std::int64_t tile = lowering_.schedule.tile;
    if (lowering_.schedule.target == Target::kCuda) {
      join_by_columns(kernel.kernel.schedule);
      tile = kernel.kernel.schedule.tile;
    }
    KernelWriter writer(group_, kernel);
    Emitter& e = writer.emitter;
    LoopNest nest(lowering_, writer);
    LoopNest::Loops loops;
    loops.outer = parallel_;
    loops.outer.insert(loops.outer.end(), row_.begin(), row_.end() - 1);
    loops.lane = static_cast<int>(lane_);
    loops.tile = tile;
    nest.open(loops);
    nest.update_coordinates();
    const VarId chunk = e.indices().add_var("s", chunks_);
    accumulate_parts(writer, lowering_, column_reductions_, memory_,
                     {For::Kind::kSerial, chunk, 0, Index(chunks_), {}},
                     state_at(e.indices(), nest, e.indices().of(chunk)));
    for (const std::size_t i : column_reductions_) writer.finish(i);
    std::vector<std::size_t> all = parallel_;
    all.insert(all.end(), row_.begin(), row_.end());
    for (const std::size_t i : results_)
      if (const GroupResult& result = group_.results[i]; result.column)
        writer.store(result, only_first(lowering_, nest, result, all));
    nest.close();
    e.finish();
    kernel.kernel.work = chunks_ * Extent(tile);
  }

  Lowering& lowering_;
  const GroupAnalysis& group_;
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
  StateWorkspaces memory_;
  std::vector<VarId> vars_;  // by row_
  Index row_index_;          // in the row
  Index sum_index_;          // of a column's state
  std::vector<loop::BufferId> sums_;
  std::vector<Emitter::Cached> cached_;
  std::vector<DType> cached_types_;
};

}  // namespace

void make_row_col_kernels(Lowering& lowering, const std::vector<std::size_t>& results) {
  RowColMaker(lowering, results).run();
}

}  // namespace segfuse::compiler
