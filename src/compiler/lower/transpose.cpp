#include <fmt/format.h>

#include <algorithm>

#include "compiler/lower/make.h"

namespace segfuse::compiler {

using ir::Extent;
using loop::Atom;
using loop::For;
using loop::Index;
using loop::Within;

namespace {

/// Tiles of the two innermost axes. On a CPU lanes write what they read across: a tile is small
/// enough that lines stay near. On a GPU lanes read along the one order into memory of the block,
/// and write along the other from there, unless the schedule holds nothing.
class TransposeMaker {
 public:
  TransposeMaker(Making& making, const std::vector<std::size_t>& results)
      : making_(making), group_(making.group), results_(results) {
    for (std::size_t axis = 0; axis < group_.space.axes.size(); ++axis) {
      all_.push_back(axis);
      if (static_cast<int>(axis) != group_.space.inner &&
          static_cast<int>(axis) != group_.space.cross)
        others_.push_back(axis);
    }
  }

  /// Lanes write along the one order; what they read along the other is brought near first.
  void run_direct() {
    GroupKernel unused;
    Walker trial(group_, unused);
    write_direct(trial);
    GroupKernel& kernel = making_.add_kernel();
    Walker walker(group_, kernel);
    walker.emitter.follow(trial.emitter);
    write_direct(walker);
    kernel.kernel.work = Extent(making_.schedule.tile * making_.schedule.cross);
  }

  void run_tiled() {
    GroupKernel unused;
    Walker trial(group_, unused);
    write(trial, {});
    choose_held(trial);
    GroupKernel& kernel = making_.add_kernel();
    Walker walker(group_, kernel);
    walker.emitter.follow(trial.emitter);
    write(walker, held_);
    kernel.kernel.work = Extent(making_.schedule.tile * making_.schedule.tile);
  }

 private:
  void write_direct(Walker& walker) {
    Emitter& e = walker.emitter;
    Frame frame(making_, walker);
    Frame::Loops loops;
    loops.outer = others_;
    loops.lane = group_.space.inner;
    loops.tile = making_.schedule.tile;
    loops.serial = group_.space.cross;
    loops.serial_tile = making_.schedule.cross;
    frame.open(loops);
    frame.settle();
    if (making_.schedule.hold == Hold::kScratch) {
      const Frame::Tile& lane = frame.lane();
      const Frame::Tile& row = frame.serial();
      e.held_depth = e.depth();
      e.held_at =
          e.indices().add(e.indices().multiply(row.inside, making_.schedule.tile), lane.inside);
      for (std::size_t i = 0; i < held_.size(); ++i) {
        const Matrix from = *across(e, frame, held_[i]);
        const loop::BufferId from_buffer = e.buffer_of(held_[i].val, false);
        const loop::BufferId near =
            e.row_buffer(fmt::format("t{}", i), e.kernel().buffer(from_buffer).dtype,
                         making_.schedule.cross * making_.schedule.tile, Hold::kScratch, 0);
        e.emit({loop::Transpose{near, 0, making_.schedule.tile, from_buffer, from.begin, from.step,
                                row.count, lane.count}},
               0);
        e.held.push_back({held_[i], near, true});
      }
    }
    store(walker, frame);
    frame.close();
    for (const Emitter::Seen& seen : e.seen)
      if (held_.empty() && across(e, frame, seen.request)) found_.push_back(seen.request);
    e.finish();
    held_ = std::move(found_);
  }

  std::optional<Matrix> across(Emitter& e, const Frame& frame, const Request& request) const {
    const auto at = position_of(group_, e, request);
    if (!at) return {};
    return matrix_of(e, *at, frame.serial().var, frame.serial().begin, frame.lane().var,
                     frame.lane().begin);
  }

  void store(Walker& walker, const Frame& frame) const {
    for (const std::size_t i : results_)
      walker.store(group_.results[i], only_first(making_, frame, group_.results[i], all_));
  }

  /// The index with the two parts of the lane's variable exchanged; nothing if one of them is
  /// inside of another part.
  std::optional<Index> exchanged(loop::Indices& indices, const Index& index) const {
    Index result(index.constant);
    for (const Index::Term& term : index.terms) {
      const Atom atom = indices.atom(term.atom);
      Index part;
      part.terms.push_back({term.atom, 1});
      if (part == quotient_) {
        part = rest_;
      } else if (part == rest_) {
        part = quotient_;
      } else if (atom.kind != Atom::Kind::kVar && indices.depends_on(part, lane_)) {
        return {};
      }
      result = indices.add(result, indices.multiply(part, term.coefficient));
    }
    return result;
  }

  void write(Walker& walker, std::vector<Request> held) {
    Emitter& e = walker.emitter;
    loop::Indices& indices = e.indices();
    const std::int64_t tile = making_.schedule.tile;
    const auto inner = static_cast<std::size_t>(group_.space.inner);
    const auto cross = static_cast<std::size_t>(group_.space.cross);
    const Extent& inner_extent = group_.space.axes[inner].extent;
    const Extent& cross_extent = group_.space.axes[cross].extent;
    Frame frame(making_, walker);
    ir::Extents counts;
    for (const std::size_t axis : others_) counts.push_back(group_.space.axes[axis].extent);
    counts.push_back(group_.ceil_divide(cross_extent, tile));
    counts.push_back(group_.ceil_divide(inner_extent, tile));
    const loop::VarId outer = e.outer(product(counts));
    const Tuple parts = unflatten(indices, indices.of(outer), counts);
    for (std::size_t i = 0; i < others_.size(); ++i) frame.set(others_[i], parts[i]);
    lane_ = indices.add_var("e", tile * tile);
    quotient_ = indices.divide(indices.of(lane_), tile);
    rest_ = indices.modulo(indices.of(lane_), tile);
    const Index cross_begin = indices.multiply(parts[others_.size()], tile);
    const Index inner_begin = indices.multiply(parts[others_.size() + 1], tile);

    if (!held.empty()) {
      e.open(For::Kind::kLane, lane_, 0, Index(tile * tile));
      e.guard = {{indices.add(cross_begin, rest_), cross_extent},
                 {indices.add(inner_begin, quotient_), inner_extent}};
      const Index to = indices.add(indices.multiply(rest_, tile + 1), quotient_);
      for (std::size_t i = 0; i < held.size(); ++i) {
        Request request = held[i];
        for (Index& at : request.at) at = *exchanged(indices, at);
        const loop::ValueId value = e.eval(request);
        const loop::BufferId buffer =
            e.row_buffer(fmt::format("t{}", i), e.kernel().dtype(value), tile * (tile + 1),
                         Hold::kScratch, tile * (tile + 1));
        e.store(buffer, to, value, {});
        e.held.push_back({held[i], buffer, true});
      }
      e.close();
      e.emit({loop::Barrier{}});
    }
    frame.set(cross, indices.add(cross_begin, quotient_));
    frame.set(inner, indices.add(inner_begin, rest_));
    frame.settle();
    e.open(For::Kind::kLane, lane_, 0, Index(tile * tile));
    e.guard = {{frame.at(cross), cross_extent}, {frame.at(inner), inner_extent}};
    e.held_depth = e.depth();
    e.held_at = indices.add(indices.multiply(quotient_, tile + 1), rest_);
    store(walker, frame);
    e.close();
    e.finish();
  }

  /// What is loaded along the other order.
  void choose_held(Walker& trial) {
    loop::Indices& indices = trial.emitter.indices();
    for (const Emitter::Seen& seen : trial.emitter.seen) {
      if (!seen.loaded || !seen.request.when.empty()) continue;
      const ir::Extents shape = group_.fusion.canonical(group_.fusion.val(seen.request.val).shape);
      const Index linear = linearize(indices, seen.request.at, shape);
      Extent along_cross = 0;
      for (const Index::Term& term : linear.terms) {
        Index part;
        part.terms.push_back({term.atom, 1});
        if (part == quotient_) along_cross = term.coefficient;
      }
      bool simple = along_cross.is_constant(1);
      for (const Index& at : seen.request.at) simple = simple && exchanged(indices, at);
      if (simple) held_.push_back(seen.request);
    }
  }

  Making& making_;
  const GroupState& group_;
  const std::vector<std::size_t>& results_;
  std::vector<std::size_t> others_;
  std::vector<std::size_t> all_;
  loop::VarId lane_;
  Index quotient_;
  Index rest_;
  std::vector<Request> held_;
  std::vector<Request> found_;  // by a trial
};

}  // namespace

void make_transpose_kernel(Making& making, const std::vector<std::size_t>& results) {
  TransposeMaker maker(making, results);
  if (making.schedule.target == Target::kCuda && making.schedule.hold == Hold::kScratch) {
    maker.run_tiled();
  } else {
    maker.run_direct();
  }
}

}  // namespace segfuse::compiler
