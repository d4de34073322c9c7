#include <fmt/format.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "compiler/lower/kernel_makers.h"

namespace segfuse::compiler {

using ir::Extent;
using loop::For;
using loop::Index;
using loop::VarId;
using Role = SpaceAxis::Role;

namespace {

/// Loops over the reduced axes, opened and closed for every walk.
class RowLoops {
 public:
  RowLoops(const Lowering& lowering, const RowAxes& axes, KernelWriter& writer, LoopNest& nest)
      : lowering_(lowering), axes_(axes), e_(writer.emitter) {
    for (const std::size_t axis : axes.walked) vars_.push_back(nest.iterate(axis, "r"));
    if (axes.lane_walked) vars_.push_back(nest.iterate(static_cast<std::size_t>(axes.lane), "j"));
  }

  /// The first of the loops runs over a part only.
  void limit(Index begin, Index end) {
    begin_ = std::move(begin);
    end_ = std::move(end);
    limited_ = true;
  }

  void open() {
    for (std::size_t i = 0; i < vars_.size(); ++i) {
      const bool lane = i == axes_.walked.size();
      const std::size_t axis = lane ? static_cast<std::size_t>(axes_.lane) : axes_.walked[i];
      const For::Kind kind = lane ? For::Kind::kLane : For::Kind::kSerial;
      if (limited_ && i == 0) {
        e_.open(kind, vars_[i], begin_, end_);
      } else {
        e_.open(kind, vars_[i], 0, Index(lowering_.group.space.axes[axis].extent));
      }
    }
  }
  void close() {
    for (std::size_t i = 0; i < vars_.size(); ++i) e_.close();
  }
  std::size_t count() const { return vars_.size(); }
  VarId inner() const { return vars_.back(); }
  std::vector<std::size_t> axes() const {
    std::vector<std::size_t> all = axes_.walked;
    if (axes_.lane_walked) all.push_back(static_cast<std::size_t>(axes_.lane));
    return all;
  }

 private:
  const Lowering& lowering_;
  const RowAxes& axes_;
  Emitter& e_;
  std::vector<VarId> vars_;
  Index begin_;
  Index end_;
  bool limited_ = false;
};

/// Positions of all parallel axes, in the order of the Space.
Index parallel_position(const Lowering& lowering, const LoopNest& nest) {
  return nest.linear(axes_of(lowering.group.space, Role::kParallel));
}

void restore_finished(KernelWriter& writer, const Lowering& lowering, const LoopNest& nest) {
  const Index at = parallel_position(lowering, nest);
  for (std::size_t i = 0; i < lowering.ready.size(); ++i)
    if (!lowering.ready[i].empty()) writer.set(i, restore(writer, lowering, lowering.ready, i, at));
}

class WalkMaker {
 public:
  WalkMaker(Lowering& lowering, const WalkKernel& what)
      : lowering_(lowering), what_(what), axes_(lowering, what.absent) {
    last_ = lowering.group.walks_of(what.reductions);
    for (const std::size_t i : what.results)
      last_ = std::max(last_, lowering.group.results[i].walk);
  }

  void run() {
    GroupKernel& kernel = lowering_.add_kernel();
    KernelWriter writer(lowering_.group, kernel);
    std::vector<Emitter::Cached> cached;
    if (can_cache()) {
      GroupKernel unused;
      KernelWriter dry_run(lowering_.group, unused);
      write(dry_run, {});
      cached = choose_cached(dry_run);
      writer.emitter.share_indices(dry_run.emitter);
    }
    write(writer, std::move(cached));
    kernel.kernel.work =
        elements_of(lowering_.group.space, axes_of(lowering_.group.space, Role::kReduced));
    if (axes_.lane >= 0 && !axes_.lane_walked) kernel.kernel.work = kernel.kernel.work * tile();
    if (axes_.inner_walked)
      kernel.kernel.work = kernel.kernel.work * lowering_.group.space.axes[axes_.walked[0]].extent;
  }

 private:
  std::int64_t tile() const { return lowering_.schedule.tile; }

  bool can_cache() const {
    if (transposes()) return true;
    if (lowering_.schedule.hold == Hold::kReread || !axes_.lane_walked || last_ == 0) return false;
    return lowering_.schedule.hold != Hold::kRegister || axes_.walked.empty();
  }

  /// Whether a tile of rows is transposed into a row buffer, and results back. A lane that walks
  /// along a row of its own would touch memory in strides of a row; in the buffer the rows are side
  /// by side, and memory is touched along them only.
  bool transposes() const {
    return lowering_.schedule.hold == Hold::kScratch && axes_.across && !axes_.lane_walked &&
           axes_.walked.size() == 1;
  }

  /// On a CPU what is expensive to compute: a row that was loaded stays in a data cache for a
  /// while, so loading it from a row buffer would save nothing. On a GPU what is loaded, and in
  /// registers both.
  std::vector<Emitter::Cached> choose_cached(KernelWriter& dry_run) {
    const std::vector<Emitter::Traced>& trace = dry_run.emitter.trace;
    std::set<std::size_t> chosen;
    transposed_.clear();
    for (std::size_t i = 0; i < trace.size(); ++i) {
      const bool on_cpu = lowering_.schedule.target == Target::kCpu;
      const bool in_registers = lowering_.schedule.hold == Hold::kRegister;
      const bool wanted =
          (!on_cpu && trace[i].loaded) || ((on_cpu || in_registers) && trace[i].expensive);
      const bool transposed =
          rows_at(dry_run.emitter, position_of(lowering_.group, dry_run.emitter, trace[i].request))
              .has_value();
      if (transposed) transposed_.insert(i);
      if (transposed || (wanted && trace[i].walks.size() >= 2)) chosen.insert(i);
    }
    if (lowering_.schedule.target == Target::kCuda)
      for (std::size_t i = trace.size(); i-- > 0;) replace_loads(dry_run, i, chosen);
    return cached_of(trace, chosen);
  }

  std::vector<Emitter::Cached> cached_of(const std::vector<Emitter::Traced>& trace,
                                         const std::set<std::size_t>& chosen) {
    std::vector<Emitter::Cached> cached;
    types_.clear();
    for (const std::size_t i : chosen) {
      cached.push_back({trace[i].request, {}, transposed_.count(i) != 0});
      types_.push_back(trace[i].dtype);
    }
    return cached;
  }

  /// The rows of one tile, one behind the other in memory.
  std::optional<Matrix> rows_at(Emitter& e, const std::optional<Index>& linear) const {
    if (!transposes() || !linear) return {};
    return matrix_of(e, *linear, row_, 0, tile_.var, tile_.begin);
  }

  /// Caches a value instead of the loads that it is computed from (a sum instead of both addends),
  /// where no walk needs these for anything else. Another dry run tells whether they are loaded
  /// again.
  void replace_loads(const KernelWriter& first, std::size_t value, std::set<std::size_t>& chosen) {
    const std::vector<Emitter::Traced>& trace = first.emitter.trace;
    const Emitter::Traced& v = trace[value];
    std::size_t bytes = 0;
    for (const std::size_t load : v.loads) {
      if (chosen.count(load) == 0 || trace[load].walks != v.walks) return;
      bytes += size_of(trace[load].dtype);
    }
    if (v.loaded || v.loads.size() < 2 || size_of(v.dtype) > bytes) return;
    std::set<std::size_t> others = chosen;
    for (const std::size_t load : v.loads) others.erase(load);
    others.insert(value);
    GroupKernel unused;
    KernelWriter dry_run(lowering_.group, unused);
    dry_run.emitter.share_indices(first.emitter);
    write(dry_run, cached_of(trace, others));
    const bool loaded_again =
        std::any_of(dry_run.emitter.trace.begin(), dry_run.emitter.trace.end(), [&](const auto& s) {
          return s.walks.size() >= 2 &&
                 std::any_of(v.loads.begin(), v.loads.end(),
                             [&](std::size_t load) { return trace[load].request == s.request; });
        });
    if (!loaded_again) chosen = std::move(others);
  }

  void write(KernelWriter& writer, std::vector<Emitter::Cached> cached) {
    Emitter& e = writer.emitter;
    LoopNest nest(lowering_, writer);
    LoopNest::Loops loops;
    loops.outer = axes_.parallel;
    if (axes_.lane >= 0 && !axes_.lane_walked) {
      loops.lane = axes_.lane;
      loops.tile = tile();
    }
    nest.open(loops);
    RowLoops rows(lowering_, axes_, writer, nest);
    nest.update_coordinates();
    restore_finished(writer, lowering_, nest);
    if (can_cache()) {
      e.cache.depth = e.depth() + static_cast<int>(rows.count());
      e.cache.index = nest.linear(rows.axes());
      elements_ = elements_of(lowering_.group.space, rows.axes());
      if (transposes()) {
        tile_ = nest.lane();
        row_ = rows.inner();
        e.cache.index = e.indices().add(e.indices().multiply(e.cache.index, tile()), tile_.inside);
        elements_ = elements_ * Extent(tile());
      }
      for (std::size_t i = 0; i < cached.size(); ++i) {
        cached[i].buffer = e.row_buffer(fmt::format("h{}", i), types_[i], elements_,
                                        lowering_.schedule.hold, lowering_.schedule.row);
        if (cached[i].stored) transpose_in(e, cached[i]);
      }
      e.cache.values = std::move(cached);
    }
    for (int walk = 0; walk <= last_; ++walk) step(writer, nest, rows, walk);
    if (what_.keep)
      for (const std::size_t i : what_.reductions)
        save(writer, lowering_, lowering_.finished, i, parallel_position(lowering_, nest));
    nest.close();
    for (loop::Transpose& out : out_) e.emit({std::move(out)});
    out_.clear();
    e.finish();
  }

  Index height() const { return Index(lowering_.group.space.axes[axes_.walked[0]].extent); }

  void transpose_in(Emitter& e, const Emitter::Cached& cached) const {
    const Matrix from = *rows_at(e, position_of(lowering_.group, e, cached.request));
    e.emit({loop::Transpose{cached.buffer, 0, tile(), e.buffer_of(cached.request.val, false),
                            from.begin, from.step, height(), tile_.count}},
           0);
  }

  /// A result, through memory where its columns are side by side.
  void store(KernelWriter& writer, const GroupResult& result, std::vector<loop::Within> when) {
    Emitter& e = writer.emitter;
    const GroupAnalysis& group = lowering_.group;
    const Coordinates at = group.output_coordinates(e.indices(), result, writer.domain_at);
    const ir::Extents shape = group.context.shape_of(result.output);
    const auto to = rows_at(e, linearize(e.indices(), at, shape));
    if (!to || !when.empty()) return writer.store(result, std::move(when));
    const loop::ValueId value =
        e.cast(e.eval(result.root, group.coordinates_of(result.root, writer.domain_at)),
               group.fusion.val(result.output).dtype);
    const loop::BufferId near = e.row_buffer(fmt::format("o{}", out_.size()),
                                             e.kernel().dtype(value), elements_, Hold::kScratch, 0);
    e.store(near, e.cache.index, value, {});
    out_.push_back({e.buffer_of(result.output, true), to->begin, to->step, near, 0, tile(),
                    tile_.count, height()});
  }

  void step(KernelWriter& writer, LoopNest& nest, RowLoops& rows, int walk) {
    const GroupAnalysis& group = lowering_.group;
    std::vector<std::size_t> all(group.space.axes.size());
    for (std::size_t axis = 0; axis < all.size(); ++axis) all[axis] = axis;
    std::vector<std::size_t> reductions;
    std::vector<std::size_t> full;
    for (const std::size_t i : what_.reductions)
      if (group.reductions[i].walk == walk) reductions.push_back(i);
    for (const std::size_t i : what_.results) {
      const GroupResult& result = group.results[i];
      if (result.walk != walk) continue;
      if (result.full || axes_.inner_walked) {
        full.push_back(i);
      } else {
        writer.store(result,
                     only_first(lowering_, nest, result, axes_of(group.space, Role::kParallel)));
      }
    }
    if (reductions.empty() && full.empty()) return;
    writer.emitter.next_walk();
    for (const std::size_t i : reductions) writer.begin(i);
    rows.open();
    for (const std::size_t i : reductions) writer.accumulate(i);
    for (const std::size_t i : full)
      store(writer, group.results[i], only_first(lowering_, nest, group.results[i], all));
    rows.close();
    for (const std::size_t i : reductions) writer.finish(i);
  }

  Lowering& lowering_;
  const WalkKernel& what_;
  RowAxes axes_;
  int last_ = 0;
  LoopNest::Tile tile_;               // of lanes across rows that are transposed
  VarId row_;                         // along them
  Extent elements_;                   // of a row buffer
  std::vector<loop::Transpose> out_;  // when the lanes are done
  std::vector<DType> types_;          // of what is cached
  std::set<std::size_t> transposed_;  // positions in Emitter::trace of what is brought from rows
};

}  // namespace

RowAxes::RowAxes(const Lowering& lowering, const std::vector<std::size_t>& absent) {
  const Space& space = lowering.group.space;
  parallel = axes_of(space, Role::kParallel);
  walked = axes_of(space, Role::kReduced);
  for (const std::size_t axis : absent) std::erase(parallel, axis);
  std::vector<std::size_t> all = parallel;
  all.insert(all.end(), walked.begin(), walked.end());
  if (all.empty()) return;
  std::sort(all.begin(), all.end());
  const auto is_there = [&](int axis) {
    return axis >= 0 && std::binary_search(all.begin(), all.end(), static_cast<std::size_t>(axis));
  };
  const bool nothing_walked = walked.empty();
  // By default along the innermost axis, so that neighbouring lanes touch neighbouring memory.
  lane = is_there(lowering.schedule.lanes) ? lowering.schedule.lanes
         : is_there(space.inner)           ? space.inner
                                           : static_cast<int>(all.back());
  across = is_there(space.inner) && lane != space.inner;
  const auto number = static_cast<std::size_t>(lane);
  lane_walked = space.axes[number].role == Role::kReduced;
  std::erase(lane_walked ? walked : parallel, number);
  if (!across || !nothing_walked) return;
  inner_walked = true;
  walked.push_back(static_cast<std::size_t>(space.inner));
  std::erase(parallel, walked.back());
}

void make_walk_kernel(Lowering& lowering, const WalkKernel& what) {
  WalkMaker(lowering, what).run();
}

namespace {

/// Where the state of one part of a row is: parts of a row side by side, but rows where lanes run
/// along them.
Index part_index(const Lowering& lowering, loop::Indices& indices, const LoopNest& nest,
                 bool lane_walked, const Index& part, const Extent& parts) {
  const Index row = parallel_position(lowering, nest);
  if (lane_walked) return indices.add(indices.multiply(row, parts), part);
  const auto parallel = axes_of(lowering.group.space, Role::kParallel);
  return indices.add(indices.multiply(part, elements_of(lowering.group.space, parallel)), row);
}

/// The kernel that walks parts of rows. Short columns that lanes run down are transposed first, a
/// part of all of them together (CPU).
class PartMaker {
 public:
  PartMaker(Lowering& lowering, const WalkKernel& what, const RowAxes& axes, const Extent& parts,
            const StateWorkspaces& memory)
      : lowering_(lowering), what_(what), axes_(axes), parts_(parts), memory_(memory) {
    const Space& space = lowering.group.space;
    first_ = axes.walked.empty() ? static_cast<std::size_t>(axes.lane) : axes.walked[0];
    if (lowering.schedule.hold == Hold::kScratch && axes.across && axes.lane_walked &&
        axes.walked.empty() &&
        space.axes[static_cast<std::size_t>(space.inner)].role == Role::kParallel)
      column_ = space.inner;
  }

  void run() {
    GroupKernel& kernel = lowering_.add_kernel();
    KernelWriter writer(lowering_.group, kernel);
    if (column_ >= 0) {
      GroupKernel unused;
      KernelWriter dry_run(lowering_.group, unused);
      write(dry_run);
      writer.emitter.share_indices(dry_run.emitter);
    }
    write(writer);
    kernel.kernel.work = Extent(lowering_.schedule.split);
    for (const std::size_t axis : axes_.walked)
      if (axis != first_) kernel.kernel.work = kernel.kernel.work * length(axis);
    if (axes_.lane_walked && static_cast<std::size_t>(axes_.lane) != first_)
      kernel.kernel.work = kernel.kernel.work * length(static_cast<std::size_t>(axes_.lane));
    if (column_ >= 0) kernel.kernel.work = kernel.kernel.work * length(column());
    if (!axes_.lane_walked) kernel.kernel.work = kernel.kernel.work * lowering_.schedule.tile;
  }

 private:
  const Extent& length(std::size_t axis) const { return lowering_.group.space.axes[axis].extent; }
  std::size_t column() const { return static_cast<std::size_t>(column_); }

  void write(KernelWriter& writer) {
    Emitter& e = writer.emitter;
    LoopNest nest(lowering_, writer);
    LoopNest::Loops loops;
    loops.outer = axes_.parallel;
    loops.extra = parts_;
    loops.extra_first = axes_.across && axes_.lane_walked;
    if (column_ >= 0) std::erase(loops.outer, column());
    if (!axes_.lane_walked) {
      loops.lane = axes_.lane;
      loops.tile = lowering_.schedule.tile;
    }
    nest.open(loops);
    if (column_ >= 0) {
      column_var_ = nest.iterate(column(), "c");
      e.open(For::Kind::kSerial, column_var_, 0, Index(length(column())));
    }
    RowLoops rows(lowering_, axes_, writer, nest);
    const std::int64_t part = lowering_.schedule.split;
    begin_ = e.indices().multiply(nest.extra(), part);
    const Index end =
        e.indices().minimum(e.indices().add(begin_, Index(part)), Index(length(first_)));
    rows.limit(begin_, end);
    nest.update_coordinates();
    restore_finished(writer, lowering_, nest);
    if (column_ >= 0) {
      lane_ = rows.inner();
      transpose_in(e, e.indices().subtract(end, begin_));
    }
    for (const std::size_t i : what_.reductions) writer.begin(i);
    rows.open();
    for (const std::size_t i : what_.reductions) writer.accumulate(i);
    std::vector<std::size_t> all(lowering_.group.space.axes.size());
    std::iota(all.begin(), all.end(), 0U);
    for (const std::size_t i : what_.results)
      if (const GroupResult& result = lowering_.group.results[i]; result.full)
        writer.store(result, only_first(lowering_, nest, result, all));
    rows.close();
    const Index to =
        part_index(lowering_, e.indices(), nest, axes_.lane_walked, nest.extra(), parts_);
    for (const std::size_t i : what_.reductions) {
      writer.finish(i);
      save(writer, lowering_, memory_, i, to);
    }
    if (column_ >= 0) {
      e.close();
      transposed_.clear();
      for (const Emitter::Traced& one : e.trace)
        if (columns_at(e, one.request)) transposed_.push_back(one.request);
    }
    nest.close();
    e.finish();
  }

  std::optional<Matrix> columns_at(Emitter& e, const Request& request) const {
    const auto at = position_of(lowering_.group, e, request);
    if (!at) return {};
    return matrix_of(e, *at, column_var_, 0, lane_, begin_);
  }

  void transpose_in(Emitter& e, const Index& count) const {
    const std::int64_t part = lowering_.schedule.split;
    loop::Indices& indices = e.indices();
    e.cache.depth = e.depth() + 1;
    e.cache.index = indices.add(indices.multiply(indices.of(column_var_), part),
                                indices.subtract(indices.of(lane_), begin_));
    for (std::size_t i = 0; i < transposed_.size(); ++i) {
      const Matrix from = *columns_at(e, transposed_[i]);
      const loop::BufferId buffer = e.buffer_of(transposed_[i].val, false);
      const loop::BufferId near =
          e.row_buffer(fmt::format("t{}", i), e.kernel().buffer(buffer).dtype,
                       length(column()) * Extent(part), Hold::kScratch, 0);
      e.emit({loop::Transpose{near, 0, part, buffer, from.begin, from.step, Index(length(column())),
                              count}},
             0);
      e.cache.values.push_back({transposed_[i], near, true});
    }
  }

  Lowering& lowering_;
  const WalkKernel& what_;
  const RowAxes& axes_;
  const Extent& parts_;
  const StateWorkspaces& memory_;
  std::size_t first_ = 0;
  int column_ = -1;  ///< the axis that is transposed
  VarId column_var_, lane_;
  Index begin_;
  std::vector<Request> transposed_;  // by a dry_run
};

}  // namespace

void make_split_kernels(Lowering& lowering, const WalkKernel& what) {
  const GroupAnalysis& group = lowering.group;
  const RowAxes axes(lowering);
  const std::size_t first =
      axes.walked.empty() ? static_cast<std::size_t>(axes.lane) : axes.walked[0];
  const std::int64_t part = lowering.schedule.split;
  const Extent& whole = group.space.axes[first].extent;
  Extent parts = group.ceil_divide(whole, part);
  const auto parallel = axes_of(group.space, Role::kParallel);
  const Extent rows = elements_of(group.space, parallel);
  StateWorkspaces memory = lowering.add_states(what.reductions, rows * parts);
  PartMaker(lowering, what, axes, parts, memory).run();
  const bool columns = !axes.lane_walked && axes.lane >= 0;
  if (columns && lowering.schedule.joined > 0) {
    Extent groups;
    memory = join_some(lowering, what.reductions, memory, {1, parts, rows}, groups);
    parts = groups;
  }
  GroupKernel& kernel = lowering.add_kernel();
  std::int64_t tile = lowering.schedule.tile;
  if (columns && lowering.schedule.target == Target::kCuda) {
    join_by_columns(kernel.kernel.schedule);
    tile = kernel.kernel.schedule.tile;
  }
  KernelWriter writer(group, kernel);
  Emitter& e = writer.emitter;
  LoopNest nest(lowering, writer);
  LoopNest::Loops loops;
  loops.outer = parallel;
  if (columns) {
    loops.lane = axes.lane;
    loops.tile = tile;
    std::erase(loops.outer, static_cast<std::size_t>(axes.lane));
  }
  nest.open(loops);
  nest.update_coordinates();
  restore_finished(writer, lowering, nest);
  const VarId var = e.indices().add_var("s", parts);
  const For::Kind kind = loops.lane < 0 ? For::Kind::kLane : For::Kind::kSerial;
  accumulate_parts(
      writer, lowering, what.reductions, memory, {kind, var, 0, Index(parts), {}},
      part_index(lowering, e.indices(), nest, axes.lane_walked, e.indices().of(var), parts));
  for (const std::size_t i : what.reductions) writer.finish(i);
  for (const std::size_t i : what.results)
    if (const GroupResult& result = group.results[i]; !result.full)
      writer.store(result, only_first(lowering, nest, result, parallel));
  if (what.keep)
    for (const std::size_t i : what.reductions)
      save(writer, lowering, lowering.finished, i, parallel_position(lowering, nest));
  nest.close();
  e.finish();
  kernel.kernel.work = loops.lane < 0 ? parts : parts * tile;
}

void make_result_kernel(Lowering& lowering, const std::vector<std::size_t>& results,
                        const std::vector<std::size_t>& axes) {
  const GroupAnalysis& group = lowering.group;
  GroupKernel& kernel = lowering.add_kernel();
  KernelWriter writer(group, kernel);
  LoopNest nest(lowering, writer);
  LoopNest::Loops loops;
  loops.outer = axes;
  const auto is_there = [&](int axis) {
    return axis >= 0 &&
           std::binary_search(axes.begin(), axes.end(), static_cast<std::size_t>(axis));
  };
  int walked = -1;  // what each lane walks along when lanes run across
  if (!axes.empty()) {
    loops.lane = is_there(lowering.schedule.lanes) ? lowering.schedule.lanes
                 : is_there(group.space.inner)     ? group.space.inner
                                                   : static_cast<int>(axes.back());
    if (is_there(group.space.inner) && loops.lane != group.space.inner) walked = group.space.inner;
    loops.tile = lowering.schedule.tile;
    std::erase(loops.outer, static_cast<std::size_t>(loops.lane));
    if (walked >= 0) std::erase(loops.outer, static_cast<std::size_t>(walked));
  }
  nest.open(loops);
  if (walked >= 0) {
    const auto axis = static_cast<std::size_t>(walked);
    const VarId var = nest.iterate(axis, "r");
    writer.emitter.open(For::Kind::kSerial, var, 0, Index(group.space.axes[axis].extent));
  }
  nest.update_coordinates();
  restore_finished(writer, lowering, nest);
  // In the order of their walks: what overwrites an input in place comes after what reads it.
  std::vector<std::size_t> ordered = results;
  std::stable_sort(ordered.begin(), ordered.end(), [&](std::size_t a, std::size_t b) {
    return group.results[a].walk < group.results[b].walk;
  });
  for (const std::size_t i : ordered) writer.store(group.results[i], {});
  if (walked >= 0) writer.emitter.close();
  nest.close();
  writer.emitter.finish();
  kernel.kernel.work = loops.lane < 0 ? Extent(1) : Extent(lowering.schedule.tile);
}

}  // namespace segfuse::compiler
