#include <algorithm>

#include "compiler/lower/kernel_makers.h"

namespace segfuse::compiler {

using ir::Extent;
using loop::For;
using loop::Index;
using loop::VarId;

GroupKernel& Lowering::add_kernel() const {
  GroupKernel& kernel = out.kernels.emplace_back();
  kernel.kernel.name = group.name;
  if (out.kernels.size() > 1) kernel.kernel.name += "_" + std::to_string(out.kernels.size());
  kernel.kernel.schedule = schedule;
  return kernel;
}

StateWorkspaces Lowering::add_states(const std::vector<std::size_t>& reductions,
                                     const Extent& elements) const {
  StateWorkspaces memory(group.reductions.size());
  auto add = [&](std::size_t number, DType dtype) {
    memory[number].push_back(static_cast<std::uint32_t>(out.workspaces.size()));
    out.workspaces.push_back({"state", dtype, elements});
  };
  for (const std::size_t number : reductions) {
    add(number, group.reductions[number].dtype);
    if (group.reductions[number].op == ir::Monoid::kArgmax) add(number, DType::kI64);
  }
  return memory;
}

LoopNest::LoopNest(const Lowering& lowering, KernelWriter& writer)
    : lowering_(lowering), writer_(writer), at_(lowering.group.space.axes.size()) {}

void LoopNest::open(const Loops& loops) {
  Emitter& e = writer_.emitter;
  loop::Indices& indices = e.indices();
  const auto& axes = lowering_.group.space.axes;
  ir::Extents counts;
  if (loops.extra_first) counts.push_back(loops.extra);
  for (const std::size_t axis : loops.outer) counts.push_back(axes[axis].extent);
  if (!loops.extra_first) counts.push_back(loops.extra);
  auto tiles = [&](int axis, std::int64_t tile) {
    counts.push_back(
        axis < 0 ? Extent(1)
                 : lowering_.group.ceil_divide(axes[static_cast<std::size_t>(axis)].extent, tile));
  };
  tiles(loops.serial, loops.serial_tile);
  tiles(loops.lane, loops.tile);
  const Extent count = product(counts);
  const VarId outer = e.outer(count);
  const Coordinates parts = unflatten(indices, indices.of(outer), counts);
  const std::size_t before = loops.extra_first ? 1 : 0;
  for (std::size_t i = 0; i < loops.outer.size(); ++i) at_[loops.outer[i]] = parts[before + i];
  const std::size_t after = loops.outer.size();
  extra_ = parts[loops.extra_first ? 0 : after];
  auto open_tile = [&](For::Kind kind, const char* name, int axis, std::int64_t tile,
                       std::size_t part) {
    if (axis < 0) return;
    const auto number = static_cast<std::size_t>(axis);
    const VarId var = iterate(number, name);
    Tile& opened = kind == For::Kind::kLane ? lane_ : serial_;
    opened = {var, 0, Index(axes[number].extent), at_[number]};
    if (counts[part].is_constant(1)) {
      e.open(kind, var, 0, Index(axes[number].extent));
    } else {
      const Index begin = indices.multiply(parts[part], tile);
      const Index end =
          indices.minimum(indices.add(begin, Index(tile)), Index(axes[number].extent));
      opened = {var, begin, indices.subtract(end, begin), indices.subtract(at_[number], begin)};
      e.open(kind, var, begin, end);
    }
    ++opened_;
  };
  open_tile(For::Kind::kSerial, "i", loops.serial, loops.serial_tile, after + 1);
  open_tile(For::Kind::kLane, "j", loops.lane, loops.tile, after + 2);
}

void LoopNest::close() {
  for (; opened_ > 0; --opened_) writer_.emitter.close();
}

VarId LoopNest::iterate(std::size_t axis, const char* name) {
  loop::Indices& indices = writer_.emitter.indices();
  const VarId var = indices.add_var(name, lowering_.group.space.axes[axis].extent);
  at_[axis] = indices.of(var);
  return var;
}

void LoopNest::update_coordinates() {
  writer_.domain_at = lowering_.group.domain_axes(writer_.emitter.indices(), at_);
}

Index LoopNest::linear(const std::vector<std::size_t>& axes) const {
  Coordinates at;
  ir::Extents shape;
  for (const std::size_t axis : axes) {
    at.push_back(at_[axis]);
    shape.push_back(lowering_.group.space.axes[axis].extent);
  }
  return linearize(writer_.emitter.indices(), at, shape);
}

std::optional<Matrix> matrix_of(Emitter& e, const Index& linear, VarId unit,
                                const Index& unit_begin, VarId other, const Index& other_begin) {
  loop::Indices& indices = e.indices();
  const auto along = indices.stride(linear, unit);
  const auto step = indices.stride(linear, other);
  if (!along || !along->is_constant(1) || !step || step->is_constant(0)) return {};
  const Index from_unit = indices.subtract(indices.of(unit), unit_begin);
  const Index from_other = indices.subtract(indices.of(other), other_begin);
  const Index begin =
      indices.subtract(indices.subtract(linear, from_unit), indices.multiply(from_other, *step));
  if (e.depth_of(begin) > 0) return {};
  return Matrix{begin, *step};
}

std::optional<Index> position_of(const GroupAnalysis& group, Emitter& e, const Request& request) {
  if (!request.when.empty() || !group.context.reads(request.val)) return {};
  const ir::Extents shape = group.context.shape_of(request.val);
  return linearize(e.indices(), request.at, shape);
}

std::vector<std::size_t> axes_of(const Space& space, SpaceAxis::Role role) {
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < space.axes.size(); ++axis)
    if (space.axes[axis].role == role) axes.push_back(axis);
  return axes;
}

Extent elements_of(const Space& space, const std::vector<std::size_t>& axes) {
  Extent all = 1;
  for (const std::size_t axis : axes) all = all * space.axes[axis].extent;
  return all;
}

std::vector<loop::Within> only_first(const Lowering& lowering, const LoopNest& nest,
                                     const GroupResult& result,
                                     const std::vector<std::size_t>& axes) {
  std::vector<loop::Within> when;
  for (const std::size_t axis : axes)
    if (!result.along[lowering.group.collapsed[axis][0]]) when.push_back({nest.at(axis), 1});
  return when;
}

void save(KernelWriter& writer, const Lowering& lowering, const StateWorkspaces& memory,
          std::size_t number, const Index& at) {
  const auto& values = writer.finished(number);
  for (std::size_t i = 0; i < values.size(); ++i) {
    const std::uint32_t workspace = memory[number][i];
    writer.emitter.store(
        writer.emitter.workspace(workspace, lowering.out.workspaces[workspace], true), at,
        values[i], {});
  }
}

std::vector<loop::ValueId> restore(KernelWriter& writer, const Lowering& lowering,
                                   const StateWorkspaces& memory, std::size_t number,
                                   const Index& at) {
  std::vector<loop::ValueId> values;
  for (const std::uint32_t workspace : memory[number])
    values.push_back(writer.emitter.load(
        writer.emitter.workspace(workspace, lowering.out.workspaces[workspace], false), at));
  return values;
}

}  // namespace segfuse::compiler
