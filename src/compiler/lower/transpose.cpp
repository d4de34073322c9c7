#include <fmt/format.h>

#include <algorithm>

#include "compiler/lower/kernel_makers.h"

namespace segfuse::compiler {

using ir::Extent;
using loop::Atom;
using loop::For;
using loop::Index;
using loop::Within;

namespace {

/// Tiles of the two innermost axes. On a CPU lanes read across what they write along: a tile is so
/// small that the cache lines of all its rows stay in a data cache. On a GPU lanes read along the
/// one order into shared memory, and write along the other from there, so that both accesses are
/// coalesced, unless the schedule holds nothing.
class TransposeMaker {
 public:
  TransposeMaker(Lowering& lowering, const std::vector<std::size_t>& results)
      : lowering_(lowering), group_(lowering.group), results_(results) {
    for (std::size_t axis = 0; axis < group_.space.axes.size(); ++axis) {
      all_.push_back(axis);
      if (static_cast<int>(axis) != group_.space.inner &&
          static_cast<int>(axis) != group_.space.cross)
        others_.push_back(axis);
    }
  }

  /// Lanes write along the one order; what they read along the other is transposed into a row
  /// buffer first.
  void run_direct() {
    GroupKernel unused;
    KernelWriter dry_run(group_, unused);
    write_direct(dry_run);
    GroupKernel& kernel = lowering_.add_kernel();
    KernelWriter writer(group_, kernel);
    writer.emitter.share_indices(dry_run.emitter);
    write_direct(writer);
    kernel.kernel.work = Extent(lowering_.schedule.tile * lowering_.schedule.cross);
  }

  void run_tiled() {
    GroupKernel unused;
    KernelWriter dry_run(group_, unused);
    write(dry_run, {});
    choose_cached(dry_run);
    GroupKernel& kernel = lowering_.add_kernel();
    KernelWriter writer(group_, kernel);
    writer.emitter.share_indices(dry_run.emitter);
    write(writer, cached_);
    kernel.kernel.work = Extent(lowering_.schedule.tile * lowering_.schedule.tile);
  }

 private:
  void write_direct(KernelWriter& writer) {
    Emitter& e = writer.emitter;
    LoopNest nest(lowering_, writer);
    LoopNest::Loops loops;
    loops.outer = others_;
    loops.lane = group_.space.inner;
    loops.tile = lowering_.schedule.tile;
    loops.serial = group_.space.cross;
    loops.serial_tile = lowering_.schedule.cross;
    nest.open(loops);
    nest.update_coordinates();
    if (lowering_.schedule.hold == Hold::kScratch) {
      const LoopNest::Tile& lane = nest.lane();
      const LoopNest::Tile& row = nest.serial();
      e.cache.depth = e.depth();
      e.cache.index =
          e.indices().add(e.indices().multiply(row.inside, lowering_.schedule.tile), lane.inside);
      for (std::size_t i = 0; i < cached_.size(); ++i) {
        const Matrix from = *across(e, nest, cached_[i]);
        const loop::BufferId from_buffer = e.buffer_of(cached_[i].val, false);
        const loop::BufferId near =
            e.row_buffer(fmt::format("t{}", i), e.kernel().buffer(from_buffer).dtype,
                         lowering_.schedule.cross * lowering_.schedule.tile, Hold::kScratch, 0);
        e.emit({loop::Transpose{near, 0, lowering_.schedule.tile, from_buffer, from.begin,
                                from.step, row.count, lane.count}},
               0);
        e.cache.values.push_back({cached_[i], near, true});
      }
    }
    store(writer, nest);
    nest.close();
    for (const Emitter::Traced& one : e.trace)
      if (cached_.empty() && across(e, nest, one.request)) found_.push_back(one.request);
    e.finish();
    cached_ = std::move(found_);
  }

  std::optional<Matrix> across(Emitter& e, const LoopNest& nest, const Request& request) const {
    const auto at = position_of(group_, e, request);
    if (!at) return {};
    return matrix_of(e, *at, nest.serial().var, nest.serial().begin, nest.lane().var,
                     nest.lane().begin);
  }

  void store(KernelWriter& writer, const LoopNest& nest) const {
    for (const std::size_t i : results_)
      writer.store(group_.results[i], only_first(lowering_, nest, group_.results[i], all_));
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

  void write(KernelWriter& writer, std::vector<Request> cached) {
    Emitter& e = writer.emitter;
    loop::Indices& indices = e.indices();
    const std::int64_t tile = lowering_.schedule.tile;
    const auto inner = static_cast<std::size_t>(group_.space.inner);
    const auto cross = static_cast<std::size_t>(group_.space.cross);
    const Extent& inner_extent = group_.space.axes[inner].extent;
    const Extent& cross_extent = group_.space.axes[cross].extent;
    LoopNest nest(lowering_, writer);
    ir::Extents counts;
    for (const std::size_t axis : others_) counts.push_back(group_.space.axes[axis].extent);
    counts.push_back(group_.ceil_divide(cross_extent, tile));
    counts.push_back(group_.ceil_divide(inner_extent, tile));
    const loop::VarId outer = e.outer(product(counts));
    const Coordinates parts = unflatten(indices, indices.of(outer), counts);
    for (std::size_t i = 0; i < others_.size(); ++i) nest.set(others_[i], parts[i]);
    lane_ = indices.add_var("e", tile * tile);
    quotient_ = indices.divide(indices.of(lane_), tile);
    rest_ = indices.modulo(indices.of(lane_), tile);
    const Index cross_begin = indices.multiply(parts[others_.size()], tile);
    const Index inner_begin = indices.multiply(parts[others_.size() + 1], tile);

    if (!cached.empty()) {
      e.open(For::Kind::kLane, lane_, 0, Index(tile * tile));
      e.guard = {{indices.add(cross_begin, rest_), cross_extent},
                 {indices.add(inner_begin, quotient_), inner_extent}};
      // Rows of tile + 1 elements: a column of them lies in different banks of shared memory.
      const Index to = indices.add(indices.multiply(rest_, tile + 1), quotient_);
      for (std::size_t i = 0; i < cached.size(); ++i) {
        Request request = cached[i];
        for (Index& at : request.at) at = *exchanged(indices, at);
        const loop::ValueId value = e.eval(request);
        const loop::BufferId buffer =
            e.row_buffer(fmt::format("t{}", i), e.kernel().dtype(value), tile * (tile + 1),
                         Hold::kScratch, tile * (tile + 1));
        e.store(buffer, to, value, {});
        e.cache.values.push_back({cached[i], buffer, true});
      }
      e.close();
      e.emit({loop::Barrier{}});
    }
    nest.set(cross, indices.add(cross_begin, quotient_));
    nest.set(inner, indices.add(inner_begin, rest_));
    nest.update_coordinates();
    e.open(For::Kind::kLane, lane_, 0, Index(tile * tile));
    e.guard = {{nest.at(cross), cross_extent}, {nest.at(inner), inner_extent}};
    e.cache.depth = e.depth();
    e.cache.index = indices.add(indices.multiply(quotient_, tile + 1), rest_);
    store(writer, nest);
    e.close();
    e.finish();
  }

  /// What is loaded along the other order.
  void choose_cached(KernelWriter& dry_run) {
    loop::Indices& indices = dry_run.emitter.indices();
    for (const Emitter::Traced& one : dry_run.emitter.trace) {
      if (!one.loaded || !one.request.when.empty()) continue;
      const ir::Extents shape = group_.context.shape_of(one.request.val);
      const Index linear = linearize(indices, one.request.at, shape);
      Extent along_cross = 0;
      for (const Index::Term& term : linear.terms) {
        Index part;
        part.terms.push_back({term.atom, 1});
        if (part == quotient_) along_cross = term.coefficient;
      }
      bool simple = along_cross.is_constant(1);
      for (const Index& at : one.request.at) simple = simple && exchanged(indices, at);
      if (simple) cached_.push_back(one.request);
    }
  }

  Lowering& lowering_;
  const GroupAnalysis& group_;
  const std::vector<std::size_t>& results_;
  std::vector<std::size_t> others_;
  std::vector<std::size_t> all_;
  loop::VarId lane_;
  Index quotient_;
  Index rest_;
  std::vector<Request> cached_;
  std::vector<Request> found_;  // by a dry_run
};

}  // namespace

void make_transpose_kernel(Lowering& lowering, const std::vector<std::size_t>& results) {
  TransposeMaker maker(lowering, results);
  if (lowering.schedule.target == Target::kCuda && lowering.schedule.hold == Hold::kScratch) {
    maker.run_tiled();
  } else {
    maker.run_direct();
  }
}

}  // namespace segfuse::compiler
