#include <fmt/format.h>

#include <algorithm>

#include "compiler/lower/make.h"

namespace segfuse::compiler {

using ir::Extent;
using loop::For;
using loop::Index;
using loop::VarId;
using Role = SpaceAxis::Role;

namespace {

/// The axes in the roles that they have when rows are walked over.
struct RowAxes {
  explicit RowAxes(const Space& space, const std::vector<std::size_t>& absent = {})
      : parallel(axes_of(space, Role::kParallel)), walked(axes_of(space, Role::kReduced)) {
    for (const std::size_t axis : absent) std::erase(parallel, axis);
    std::vector<std::size_t> all = parallel;
    all.insert(all.end(), walked.begin(), walked.end());
    if (all.empty()) return;
    std::sort(all.begin(), all.end());
    const bool inner_there =
        space.inner >= 0 &&
        std::binary_search(all.begin(), all.end(), static_cast<std::size_t>(space.inner));
    const std::size_t number = inner_there ? static_cast<std::size_t>(space.inner) : all.back();
    lane = static_cast<int>(number);
    lane_walked = space.axes[number].role == Role::kReduced;
    std::erase(lane_walked ? walked : parallel, number);
  }

  std::vector<std::size_t> parallel;  ///< without the lanes' axis
  std::vector<std::size_t> walked;    ///< the same
  int lane = -1;
  bool lane_walked = false;
};

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
      : making_(making), what_(what), axes_(making.group.space, what.absent) {
    last_ = 0;
    for (const std::size_t i : what.reductions)
      last_ = std::max(last_, making.group.reductions[i].walk + 1);
    for (const std::size_t i : what.results) last_ = std::max(last_, making.group.results[i].level);
  }

  void run() {
    std::vector<Emitter::Held> held;
    if (can_hold()) {
      GroupKernel unused;
      Walker walker(making_.group, unused);
      write(walker, {});
      held = choose_held(walker);
    }
    GroupKernel& kernel = making_.add_kernel();
    Walker walker(making_.group, kernel);
    write(walker, std::move(held));
    kernel.kernel.work =
        elements_of(making_.group.space, axes_of(making_.group.space, Role::kReduced));
    if (axes_.lane >= 0 && !axes_.lane_walked) kernel.kernel.work = kernel.kernel.work * tile();
  }

 private:
  std::int64_t tile() const { return making_.schedule.tile; }

  bool can_hold() const {
    if (making_.schedule.hold == Hold::kReread || !axes_.lane_walked || last_ == 0) return false;
    return making_.schedule.hold != Hold::kRegister || axes_.walked.empty();
  }

  /// On a CPU what is dear to compute, since a row that was loaded is near for a while; on a GPU
  /// what is loaded.
  std::vector<Emitter::Held> choose_held(const Walker& trial) const {
    std::vector<Emitter::Held> held;
    for (const Emitter::Seen& seen : trial.emitter.seen) {
      const bool wanted = making_.schedule.target == Target::kCpu ? seen.expensive : seen.loaded;
      if (!wanted || seen.walks.size() < 2) continue;
      held.push_back({seen.request, {}, false});
      types_.push_back(seen.dtype);
    }
    return held;
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
      const Extent elements = elements_of(making_.group.space, rows.axes());
      for (std::size_t i = 0; i < held.size(); ++i)
        held[i].buffer = e.row_buffer(fmt::format("h{}", i), types_[i], elements,
                                      making_.schedule.hold, making_.schedule.row);
      e.held = std::move(held);
    }
    for (int walk = 0; walk <= last_; ++walk) step(walker, frame, rows, walk);
    if (what_.keep)
      for (const std::size_t i : what_.reductions)
        save(walker, making_, making_.finished, i, parallel_position(making_, frame));
    frame.close();
    e.finish();
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
      if (result.full) {
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
      walker.store(group.results[i], only_first(making_, frame, group.results[i], all));
    rows.close();
    for (const std::size_t i : reductions) walker.finish(i);
  }

  Making& making_;
  const WalkKernel& what_;
  RowAxes axes_;
  int last_ = 0;
  mutable std::vector<DType> types_;  // of what is held
};

}  // namespace

void make_walk_kernel(Making& making, const WalkKernel& what) { WalkMaker(making, what).run(); }

void make_split_kernels(Making& making, const WalkKernel& what) {
  const GroupState& group = making.group;
  const RowAxes axes(group.space);
  const std::size_t first =
      axes.walked.empty() ? static_cast<std::size_t>(axes.lane) : axes.walked[0];
  const std::int64_t part = making.schedule.split;
  const Extent& whole = group.space.axes[first].extent;
  const Extent parts = group.ceil_divide(whole, part);
  const auto parallel = axes_of(group.space, Role::kParallel);
  const Extent rows = elements_of(group.space, parallel);
  const StateMemory memory = making.add_states(what.reductions, rows * parts);
  {
    GroupKernel& kernel = making.add_kernel();
    Walker walker(group, kernel);
    Frame frame(making, walker);
    Frame::Loops loops;
    loops.outer = axes.parallel;
    loops.extra = parts;
    if (!axes.lane_walked) {
      loops.lane = axes.lane;
      loops.tile = making.schedule.tile;
    }
    frame.open(loops);
    RowLoops row_loops(making, axes, walker, frame);
    loop::Indices& indices = walker.emitter.indices();
    const Index begin = indices.multiply(frame.extra(), part);
    row_loops.limit(begin, indices.minimum(indices.add(begin, Index(part)), Index(whole)));
    frame.settle();
    restore_finished(walker, making, frame);
    for (const std::size_t i : what.reductions) walker.begin(i);
    row_loops.open();
    for (const std::size_t i : what.reductions) walker.accumulate(i);
    row_loops.close();
    const Index row = parallel_position(making, frame);
    for (const std::size_t i : what.reductions) {
      walker.finish(i);
      save(walker, making, memory, i, indices.add(indices.multiply(row, parts), frame.extra()));
    }
    frame.close();
    walker.emitter.finish();
    Extent others = 1;
    for (const std::size_t axis : row_loops.axes())
      if (axis != first) others = others * group.space.axes[axis].extent;
    kernel.kernel.work = others * Extent(part);
    if (!axes.lane_walked) kernel.kernel.work = kernel.kernel.work * making.schedule.tile;
  }
  GroupKernel& kernel = making.add_kernel();
  Walker walker(group, kernel);
  Emitter& e = walker.emitter;
  Frame frame(making, walker);
  Frame::Loops loops;
  loops.outer = parallel;
  if (!axes.lane_walked && axes.lane >= 0) {
    loops.lane = axes.lane;
    loops.tile = making.schedule.tile;
    std::erase(loops.outer, static_cast<std::size_t>(axes.lane));
  }
  frame.open(loops);
  frame.settle();
  restore_finished(walker, making, frame);
  const VarId var = e.indices().add_var("s", parts);
  for (const std::size_t i : what.reductions) walker.begin(i);
  e.open(loops.lane < 0 ? For::Kind::kLane : For::Kind::kSerial, var, 0, Index(parts));
  const Index at = e.indices().add(e.indices().multiply(parallel_position(making, frame), parts),
                                   e.indices().of(var));
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
  kernel.kernel.work = loops.lane < 0 ? parts : parts * making.schedule.tile;
}

void make_result_kernel(Making& making, const std::vector<std::size_t>& results,
                        const std::vector<std::size_t>& axes) {
  const GroupState& group = making.group;
  GroupKernel& kernel = making.add_kernel();
  Walker walker(group, kernel);
  Frame frame(making, walker);
  Frame::Loops loops;
  loops.outer = axes;
  const int inner = group.space.inner;
  if (!axes.empty()) {
    loops.lane =
        inner >= 0 && std::binary_search(axes.begin(), axes.end(), static_cast<std::size_t>(inner))
            ? inner
            : static_cast<int>(axes.back());
    loops.tile = making.schedule.tile;
    std::erase(loops.outer, static_cast<std::size_t>(loops.lane));
  }
  frame.open(loops);
  frame.settle();
  restore_finished(walker, making, frame);
  for (const std::size_t i : results) walker.store(group.results[i], {});
  frame.close();
  walker.emitter.finish();
  kernel.kernel.work = loops.lane < 0 ? Extent(1) : Extent(making.schedule.tile);
}

}  // namespace segfuse::compiler
