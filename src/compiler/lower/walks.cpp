#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "compiler/lower/make.h"

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
  RowLoops(const Making& making, const RowAxes& axes, Walker& walker, Frame& frame)
      : making_(making), axes_(axes), e_(walker.emitter) {
    for (const std::size_t axis : axes.walked) vars_.push_back(frame.walk(axis, "r"));
    if (axes.lane_walked) vars_.push_back(frame.walk(static_cast<std::size_t>(axes.lane), "j"));
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
        e_.open(kind, vars_[i], 0, Index(making_.group.space.axes[axis].extent));
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
  const Making& making_;
  const RowAxes& axes_;
  Emitter& e_;
  std::vector<VarId> vars_;
  Index begin_;
  Index end_;
  bool limited_ = false;
};

/// Positions of all parallel axes, in the order of the Space.
Index parallel_position(const Making& making, const Frame& frame) {
  return frame.linear(axes_of(making.group.space, Role::kParallel));
}

void restore_finished(Walker& walker, const Making& making, const Frame& frame) {
  const Index at = parallel_position(making, frame);
  for (std::size_t i = 0; i < making.there.size(); ++i)
    if (!making.there[i].empty()) walker.set(i, restore(walker, making, making.there, i, at));
}

class WalkMaker {
 public:
  WalkMaker(Making& making, const WalkKernel& what)
      : making_(making), what_(what), axes_(making, what.absent) {
    last_ = 0;
    for (const std::size_t i : what.reductions)
      last_ = std::max(last_, making.group.reductions[i].walk + 1);
    for (const std::size_t i : what.results) last_ = std::max(last_, making.group.results[i].level);
  }

  void run() {
    GroupKernel& kernel = making_.add_kernel();
    Walker walker(making_.group, kernel);
    std::vector<Emitter::Held> held;
    if (can_hold()) {
      GroupKernel unused;
      Walker trial(making_.group, unused);
      write(trial, {});
      held = choose_held(trial);
      walker.emitter.follow(trial.emitter);
    }
    write(walker, std::move(held));
    kernel.kernel.work =
        elements_of(making_.group.space, axes_of(making_.group.space, Role::kReduced));
    if (axes_.lane >= 0 && !axes_.lane_walked) kernel.kernel.work = kernel.kernel.work * tile();
    if (axes_.inner_walked)
      kernel.kernel.work = kernel.kernel.work * making_.group.space.axes[axes_.walked[0]].extent;
  }

 private:
  std::int64_t tile() const { return making_.schedule.tile; }

  bool can_hold() const {
    if (turns()) return true;
    if (making_.schedule.hold == Hold::kReread || !axes_.lane_walked || last_ == 0) return false;
    return making_.schedule.hold != Hold::kRegister || axes_.walked.empty();
  }

  /// Whether each lane walks along a row of its own in memory that is near, where columns are side
  /// by side: rows are brought there and results brought back, both transposed.
  bool turns() const {
    return making_.schedule.hold == Hold::kScratch && axes_.across && !axes_.lane_walked &&
           axes_.walked.size() == 1;
  }

  /// On a CPU what is dear to compute, since a row that was loaded is near for a while; on a GPU
  /// what is loaded, and in registers both.
  std::vector<Emitter::Held> choose_held(Walker& trial) {
    const std::vector<Emitter::Seen>& seen = trial.emitter.seen;
    std::set<std::size_t> chosen;
    turned_.clear();
    for (std::size_t i = 0; i < seen.size(); ++i) {
      const bool on_cpu = making_.schedule.target == Target::kCpu;
      const bool in_registers = making_.schedule.hold == Hold::kRegister;
      const bool wanted =
          (!on_cpu && seen[i].loaded) || ((on_cpu || in_registers) && seen[i].expensive);
      const bool turned =
          rows_at(trial.emitter, position_of(making_.group, trial.emitter, seen[i].request))
              .has_value();
      if (turned) turned_.insert(i);
      if (turned || (wanted && seen[i].walks.size() >= 2)) chosen.insert(i);
    }
    if (making_.schedule.target == Target::kCuda)
      for (std::size_t i = seen.size(); i-- > 0;) replace_loads(trial, i, chosen);
    return held_of(seen, chosen);
  }

  std::vector<Emitter::Held> held_of(const std::vector<Emitter::Seen>& seen,
                                     const std::set<std::size_t>& chosen) {
    std::vector<Emitter::Held> held;
    types_.clear();
    for (const std::size_t i : chosen) {
      held.push_back({seen[i].request, {}, turned_.count(i) != 0});
      types_.push_back(seen[i].dtype);
    }
    return held;
  }

  /// The rows of one tile, one behind the other in memory.
  std::optional<Matrix> rows_at(Emitter& e, const std::optional<Index>& linear) const {
    if (!turns() || !linear) return {};
    return matrix_of(e, *linear, row_, 0, tile_.var, tile_.begin);
  }

  /// Holds a value instead of those that it is computed from, where all walks need these for
  /// nothing else.
  void replace_loads(const Walker& first, std::size_t value, std::set<std::size_t>& chosen) {
    const std::vector<Emitter::Seen>& seen = first.emitter.seen;
    const Emitter::Seen& v = seen[value];
    std::size_t bytes = 0;
    for (const std::size_t load : v.loads) {
      if (chosen.count(load) == 0 || seen[load].walks != v.walks) return;
      bytes += size_of(seen[load].dtype);
    }
    if (v.loaded || v.loads.size() < 2 || size_of(v.dtype) > bytes) return;
    std::set<std::size_t> others = chosen;
    for (const std::size_t load : v.loads) others.erase(load);
    others.insert(value);
    GroupKernel unused;
    Walker trial(making_.group, unused);
    trial.emitter.follow(first.emitter);
    write(trial, held_of(seen, others));
    const bool loaded_again =
        std::any_of(trial.emitter.seen.begin(), trial.emitter.seen.end(), [&](const auto& s) {
          return s.walks.size() >= 2 &&
                 std::any_of(v.loads.begin(), v.loads.end(),
                             [&](std::size_t load) { return seen[load].request == s.request; });
        });
    if (!loaded_again) chosen = std::move(others);
  }

  void write(Walker& walker, std::vector<Emitter::Held> held) {
    Emitter& e = walker.emitter;
    Frame frame(making_, walker);
    Frame::Loops loops;
    loops.outer = axes_.parallel;
    if (axes_.lane >= 0 && !axes_.lane_walked) {
      loops.lane = axes_.lane;
      loops.tile = tile();
    }
    frame.open(loops);
    RowLoops rows(making_, axes_, walker, frame);
    frame.settle();
    restore_finished(walker, making_, frame);
    if (can_hold()) {
      e.held_depth = e.depth() + static_cast<int>(rows.count());
      e.held_at = frame.linear(rows.axes());
      elements_ = elements_of(making_.group.space, rows.axes());
      if (turns()) {
        tile_ = frame.lane();
        row_ = rows.inner();
        e.held_at = e.indices().add(e.indices().multiply(e.held_at, tile()), tile_.inside);
        elements_ = elements_ * Extent(tile());
      }
      for (std::size_t i = 0; i < held.size(); ++i) {
        held[i].buffer = e.row_buffer(fmt::format("h{}", i), types_[i], elements_,
                                      making_.schedule.hold, making_.schedule.row);
        if (held[i].stored) turn_in(e, held[i]);
      }
      e.held = std::move(held);
    }
    for (int walk = 0; walk <= last_; ++walk) step(walker, frame, rows, walk);
    if (what_.keep)
      for (const std::size_t i : what_.reductions)
        save(walker, making_, making_.finished, i, parallel_position(making_, frame));
    frame.close();
    for (loop::Transpose& out : out_) e.emit({std::move(out)});
    out_.clear();
    e.finish();
  }

  Index height() const { return Index(making_.group.space.axes[axes_.walked[0]].extent); }

  void turn_in(Emitter& e, const Emitter::Held& held) const {
    const Matrix from = *rows_at(e, position_of(making_.group, e, held.request));
    e.emit({loop::Transpose{held.buffer, 0, tile(), e.buffer_of(held.request.val, false),
                            from.begin, from.step, height(), tile_.count}},
           0);
  }

  /// A result, by way of memory where its columns are side by side.
  void store(Walker& walker, const Result& result, std::vector<loop::Within> when) {
    Emitter& e = walker.emitter;
    const GroupState& group = making_.group;
    const Tuple at = group.forward(e.indices(), result, walker.plan_at);
    const ir::Extents shape = group.fusion.canonical(group.fusion.val(result.output).shape);
    const auto to = rows_at(e, linearize(e.indices(), at, shape));
    if (!to || !when.empty()) return walker.store(result, std::move(when));
    const loop::ValueId value =
        e.cast(e.eval(result.root, group.tuple(result.root, walker.plan_at)),
               group.fusion.val(result.output).dtype);
    const loop::BufferId near = e.row_buffer(fmt::format("o{}", out_.size()),
                                             e.kernel().dtype(value), elements_, Hold::kScratch, 0);
    e.store(near, e.held_at, value, {});
    out_.push_back({e.buffer_of(result.output, true), to->begin, to->step, near, 0, tile(),
                    tile_.count, height()});
  }

  void step(Walker& walker, Frame& frame, RowLoops& rows, int walk) {
    const GroupState& group = making_.group;
    std::vector<std::size_t> all(group.space.axes.size());
    for (std::size_t axis = 0; axis < all.size(); ++axis) all[axis] = axis;
    std::vector<std::size_t> reductions;
    std::vector<std::size_t> full;
    for (const std::size_t i : what_.reductions)
      if (group.reductions[i].walk == walk) reductions.push_back(i);
    for (const std::size_t i : what_.results) {
      const Result& result = group.results[i];
      if (result.level != walk) continue;
      if (result.full || axes_.inner_walked) {
        full.push_back(i);
      } else {
        walker.store(result,
                     only_first(making_, frame, result, axes_of(group.space, Role::kParallel)));
      }
    }
    if (reductions.empty() && full.empty()) return;
    walker.emitter.next_walk();
    for (const std::size_t i : reductions) walker.begin(i);
    rows.open();
    for (const std::size_t i : reductions) walker.accumulate(i);
    for (const std::size_t i : full)
      store(walker, group.results[i], only_first(making_, frame, group.results[i], all));
    rows.close();
    for (const std::size_t i : reductions) walker.finish(i);
  }

  Making& making_;
  const WalkKernel& what_;
  RowAxes axes_;
  int last_ = 0;
  Frame::Tile tile_;                  // of lanes across rows that are turned
  VarId row_;                         // along them
  Extent elements_;                   // of a row buffer
  std::vector<loop::Transpose> out_;  // when the lanes are done
  std::vector<DType> types_;          // of what is held
  std::set<std::size_t> turned_;      // positions in Emitter::seen of what is brought from rows
};

}  // namespace

RowAxes::RowAxes(const Making& making, const std::vector<std::size_t>& absent) {
  const Space& space = making.group.space;
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
  lane = is_there(making.schedule.lanes) ? making.schedule.lanes
         : is_there(space.inner)         ? space.inner
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

void make_walk_kernel(Making& making, const WalkKernel& what) { WalkMaker(making, what).run(); }

namespace {

/// Where the state of one part of a row is: parts of a row side by side, but rows where lanes run
/// along them.
Index part_at(const Making& making, loop::Indices& indices, const Frame& frame, bool lane_walked,
              const Index& part, const Extent& parts) {
  const Index row = parallel_position(making, frame);
  if (lane_walked) return indices.add(indices.multiply(row, parts), part);
  const auto parallel = axes_of(making.group.space, Role::kParallel);
  return indices.add(indices.multiply(part, elements_of(making.group.space, parallel)), row);
}

/// The kernel that walks parts of rows. Short columns that lanes run down are turned first, a part
/// of all of them together (CPU).
class PartMaker {
 public:
  PartMaker(Making& making, const WalkKernel& what, const RowAxes& axes, const Extent& parts,
            const StateMemory& memory)
      : making_(making), what_(what), axes_(axes), parts_(parts), memory_(memory) {
    const Space& space = making.group.space;
    first_ = axes.walked.empty() ? static_cast<std::size_t>(axes.lane) : axes.walked[0];
    if (making.schedule.hold == Hold::kScratch && axes.across && axes.lane_walked &&
        axes.walked.empty() &&
        space.axes[static_cast<std::size_t>(space.inner)].role == Role::kParallel)
      column_ = space.inner;
  }

  void run() {
    GroupKernel& kernel = making_.add_kernel();
    Walker walker(making_.group, kernel);
    if (column_ >= 0) {
      GroupKernel unused;
      Walker trial(making_.group, unused);
      write(trial);
      walker.emitter.follow(trial.emitter);
    }
    write(walker);
    kernel.kernel.work = Extent(making_.schedule.split);
    for (const std::size_t axis : axes_.walked)
      if (axis != first_) kernel.kernel.work = kernel.kernel.work * length(axis);
    if (axes_.lane_walked && static_cast<std::size_t>(axes_.lane) != first_)
      kernel.kernel.work = kernel.kernel.work * length(static_cast<std::size_t>(axes_.lane));
    if (column_ >= 0) kernel.kernel.work = kernel.kernel.work * length(column());
    if (!axes_.lane_walked) kernel.kernel.work = kernel.kernel.work * making_.schedule.tile;
  }

 private:
  const Extent& length(std::size_t axis) const { return making_.group.space.axes[axis].extent; }
  std::size_t column() const { return static_cast<std::size_t>(column_); }

  void write(Walker& walker) {
    Emitter& e = walker.emitter;
    Frame frame(making_, walker);
    Frame::Loops loops;
    loops.outer = axes_.parallel;
    loops.extra = parts_;
    loops.extra_first = axes_.across && axes_.lane_walked;
    if (column_ >= 0) std::erase(loops.outer, column());
    if (!axes_.lane_walked) {
      loops.lane = axes_.lane;
      loops.tile = making_.schedule.tile;
    }
    frame.open(loops);
    if (column_ >= 0) {
      column_var_ = frame.walk(column(), "c");
      e.open(For::Kind::kSerial, column_var_, 0, Index(length(column())));
    }
    RowLoops rows(making_, axes_, walker, frame);
    const std::int64_t part = making_.schedule.split;
    begin_ = e.indices().multiply(frame.extra(), part);
    const Index end =
        e.indices().minimum(e.indices().add(begin_, Index(part)), Index(length(first_)));
    rows.limit(begin_, end);
    frame.settle();
    restore_finished(walker, making_, frame);
    if (column_ >= 0) {
      lane_ = rows.inner();
      turn_in(e, e.indices().subtract(end, begin_));
    }
    for (const std::size_t i : what_.reductions) walker.begin(i);
    rows.open();
    for (const std::size_t i : what_.reductions) walker.accumulate(i);
    rows.close();
    const Index to = part_at(making_, e.indices(), frame, axes_.lane_walked, frame.extra(), parts_);
    for (const std::size_t i : what_.reductions) {
      walker.finish(i);
      save(walker, making_, memory_, i, to);
    }
    if (column_ >= 0) {
      e.close();
      turned_.clear();
      for (const Emitter::Seen& seen : e.seen)
        if (columns_at(e, seen.request)) turned_.push_back(seen.request);
    }
    frame.close();
    e.finish();
  }

  std::optional<Matrix> columns_at(Emitter& e, const Request& request) const {
    const auto at = position_of(making_.group, e, request);
    if (!at) return {};
    return matrix_of(e, *at, column_var_, 0, lane_, begin_);
  }

  void turn_in(Emitter& e, const Index& count) const {
    const std::int64_t part = making_.schedule.split;
    loop::Indices& indices = e.indices();
    e.held_depth = e.depth() + 1;
    e.held_at = indices.add(indices.multiply(indices.of(column_var_), part),
                            indices.subtract(indices.of(lane_), begin_));
    for (std::size_t i = 0; i < turned_.size(); ++i) {
      const Matrix from = *columns_at(e, turned_[i]);
      const loop::BufferId buffer = e.buffer_of(turned_[i].val, false);
      const loop::BufferId near =
          e.row_buffer(fmt::format("t{}", i), e.kernel().buffer(buffer).dtype,
                       length(column()) * Extent(part), Hold::kScratch, 0);
      e.emit({loop::Transpose{near, 0, part, buffer, from.begin, from.step, Index(length(column())),
                              count}},
             0);
      e.held.push_back({turned_[i], near, true});
    }
  }

  Making& making_;
  const WalkKernel& what_;
  const RowAxes& axes_;
  const Extent& parts_;
  const StateMemory& memory_;
  std::size_t first_ = 0;
  int column_ = -1;  ///< the axis that is turned
  VarId column_var_, lane_;
  Index begin_;
  std::vector<Request> turned_;  // by a trial
};

}  // namespace

void make_split_kernels(Making& making, const WalkKernel& what) {
  const GroupState& group = making.group;
  const RowAxes axes(making);
  const std::size_t first =
      axes.walked.empty() ? static_cast<std::size_t>(axes.lane) : axes.walked[0];
  const std::int64_t part = making.schedule.split;
  const Extent& whole = group.space.axes[first].extent;
  Extent parts = group.ceil_divide(whole, part);
  const auto parallel = axes_of(group.space, Role::kParallel);
  const Extent rows = elements_of(group.space, parallel);
  StateMemory memory = making.add_states(what.reductions, rows * parts);
  PartMaker(making, what, axes, parts, memory).run();
  const bool columns = !axes.lane_walked && axes.lane >= 0;
  if (columns && making.schedule.joined > 0) {
    Extent groups;
    memory = join_some(making, what.reductions, memory, {1, parts, rows}, groups);
    parts = groups;
  }
  GroupKernel& kernel = making.add_kernel();
  std::int64_t tile = making.schedule.tile;
  if (columns && making.schedule.target == Target::kCuda) {
    join_by_columns(kernel.kernel.schedule);
    tile = kernel.kernel.schedule.tile;
  }
  Walker walker(group, kernel);
  Emitter& e = walker.emitter;
  Frame frame(making, walker);
  Frame::Loops loops;
  loops.outer = parallel;
  if (columns) {
    loops.lane = axes.lane;
    loops.tile = tile;
    std::erase(loops.outer, static_cast<std::size_t>(axes.lane));
  }
  frame.open(loops);
  frame.settle();
  restore_finished(walker, making, frame);
  const VarId var = e.indices().add_var("s", parts);
  for (const std::size_t i : what.reductions) walker.begin(i);
  e.open(loops.lane < 0 ? For::Kind::kLane : For::Kind::kSerial, var, 0, Index(parts));
  const Index at =
      part_at(making, e.indices(), frame, axes.lane_walked, e.indices().of(var), parts);
  for (const std::size_t i : what.reductions) {
    const auto values = restore(walker, making, memory, i, at);
    walker.accumulate(i, values[0], values.size() > 1 ? e.indices().of(values[1]) : Index(0));
  }
  e.close();
  for (const std::size_t i : what.reductions) walker.finish(i);
  for (const std::size_t i : what.results)
    walker.store(group.results[i], only_first(making, frame, group.results[i], parallel));
  if (what.keep)
    for (const std::size_t i : what.reductions)
      save(walker, making, making.finished, i, parallel_position(making, frame));
  frame.close();
  e.finish();
  kernel.kernel.work = loops.lane < 0 ? parts : parts * tile;
}

void make_result_kernel(Making& making, const std::vector<std::size_t>& results,
                        const std::vector<std::size_t>& axes) {
  const GroupState& group = making.group;
  GroupKernel& kernel = making.add_kernel();
  Walker walker(group, kernel);
  Frame frame(making, walker);
  Frame::Loops loops;
  loops.outer = axes;
  const auto is_there = [&](int axis) {
    return axis >= 0 &&
           std::binary_search(axes.begin(), axes.end(), static_cast<std::size_t>(axis));
  };
  int walked = -1;  // what each lane walks along when lanes run across
  if (!axes.empty()) {
    loops.lane = is_there(making.schedule.lanes) ? making.schedule.lanes
                 : is_there(group.space.inner)   ? group.space.inner
                                                 : static_cast<int>(axes.back());
    if (is_there(group.space.inner) && loops.lane != group.space.inner) walked = group.space.inner;
    loops.tile = making.schedule.tile;
    std::erase(loops.outer, static_cast<std::size_t>(loops.lane));
    if (walked >= 0) std::erase(loops.outer, static_cast<std::size_t>(walked));
  }
  frame.open(loops);
  if (walked >= 0) {
    const auto axis = static_cast<std::size_t>(walked);
    const VarId var = frame.walk(axis, "r");
    walker.emitter.open(For::Kind::kSerial, var, 0, Index(group.space.axes[axis].extent));
  }
  frame.settle();
  restore_finished(walker, making, frame);
  for (const std::size_t i : results) walker.store(group.results[i], {});
  if (walked >= 0) walker.emitter.close();
  frame.close();
  walker.emitter.finish();
  kernel.kernel.work = loops.lane < 0 ? Extent(1) : Extent(making.schedule.tile);
}

}  // namespace segfuse::compiler
