#include "compiler/lower/make.h"

namespace segfuse::compiler {

using ir::Extent;
using loop::For;
using loop::Index;
using loop::VarId;

void join_by_columns(Schedule& schedule) {
  constexpr int kThreads = 64;
  constexpr int kUnroll = 32;         // loads in flight of a lane
  constexpr std::int64_t kTile = 64;  // columns of a block: there are few, and many blocks
  schedule.threads = kThreads;
  schedule.rows_at_once = 1;
  schedule.unroll = kUnroll;
  schedule.resident = 1;
  schedule.tile = kTile;
}

StateMemory join_some(Making& making, const std::vector<std::size_t>& reductions,
                      const StateMemory& from, const States& states, Extent& groups) {
  const std::int64_t by = making.schedule.joined;
  groups = making.group.ceil_divide(states.parts, by);
  const StateMemory to = making.add_states(reductions, states.before * groups * states.after);
  GroupKernel& kernel = making.add_kernel();
  join_by_columns(kernel.kernel.schedule);
  const std::int64_t tile = kernel.kernel.schedule.tile;
  Walker walker(making.group, kernel);
  Emitter& e = walker.emitter;
  loop::Indices& indices = e.indices();
  const ir::Extents counts{states.before, groups, making.group.ceil_divide(states.after, tile)};
  const VarId outer = e.outer(product(counts));
  const Tuple at = unflatten(indices, indices.of(outer), counts);
  const VarId column = indices.add_var("j", states.after);
  const Index begin = indices.multiply(at[2], Extent(tile));
  e.open(For::Kind::kLane, column, begin,
         indices.minimum(indices.add(begin, Index(tile)), Index(states.after)));
  for (const std::size_t i : reductions) walker.begin(i);
  const VarId part = indices.add_var("s", states.parts);
  const Index first = indices.multiply(at[1], Extent(by));
  e.open(For::Kind::kSerial, part, first,
         indices.minimum(indices.add(first, Index(by)), Index(states.parts)));
  const auto place = [&](const Index& which, const Extent& count) {
    const Index row = indices.add(indices.multiply(at[0], count), which);
    return indices.add(indices.multiply(row, states.after), indices.of(column));
  };
  for (const std::size_t i : reductions) {
    const auto values = restore(walker, making, from, i, place(indices.of(part), states.parts));
    walker.accumulate(i, values[0], values.size() > 1 ? indices.of(values[1]) : Index(0));
  }
  e.close();
  for (const std::size_t i : reductions) {
    walker.finish(i);
    save(walker, making, to, i, place(at[1], groups));
  }
  e.close();
  e.finish();
  kernel.kernel.work = Extent(by * tile);
  return to;
}

}  // namespace segfuse::compiler
