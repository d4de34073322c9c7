#include "compiler/lower/kernel_makers.h"

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

void accumulate_parts(KernelWriter& writer, const Lowering& lowering,
                      const std::vector<std::size_t>& reductions, const StateWorkspaces& memory,
                      const For& loop, const Index& at) {
  Emitter& e = writer.emitter;
  for (const std::size_t i : reductions) writer.begin(i);
  e.open(loop.kind, loop.var, loop.begin, loop.end);
  for (const std::size_t i : reductions) {
    const auto values = restore(writer, lowering, memory, i, at);
    writer.accumulate(i, values[0], values.size() > 1 ? e.indices().of(values[1]) : Index(0));
  }
  e.close();
}

StateWorkspaces join_some(Lowering& lowering, const std::vector<std::size_t>& reductions,
                          const StateWorkspaces& from, const StateLayout& states, Extent& groups) {
  const std::int64_t by = lowering.schedule.joined;
  groups = lowering.group.ceil_divide(states.parts, by);
  const StateWorkspaces to = lowering.add_states(reductions, states.before * groups * states.after);
  GroupKernel& kernel = lowering.add_kernel();
  join_by_columns(kernel.kernel.schedule);
  const std::int64_t tile = kernel.kernel.schedule.tile;
  KernelWriter writer(lowering.group, kernel);
  Emitter& e = writer.emitter;
  loop::Indices& indices = e.indices();
  const ir::Extents counts{states.before, groups, lowering.group.ceil_divide(states.after, tile)};
  const VarId outer = e.outer(product(counts));
  const Coordinates at = unflatten(indices, indices.of(outer), counts);
  const VarId column = indices.add_var("j", states.after);
  const Index begin = indices.multiply(at[2], Extent(tile));
  e.open(For::Kind::kLane, column, begin,
         indices.minimum(indices.add(begin, Index(tile)), Index(states.after)));
  const VarId part = indices.add_var("s", states.parts);
  const Index first = indices.multiply(at[1], Extent(by));
  const Index end = indices.minimum(indices.add(first, Index(by)), Index(states.parts));
  const auto state_index = [&](const Index& which, const Extent& count) {
    const Index row = indices.add(indices.multiply(at[0], count), which);
    return indices.add(indices.multiply(row, states.after), indices.of(column));
  };
  accumulate_parts(writer, lowering, reductions, from, {For::Kind::kSerial, part, first, end, {}},
                   state_index(indices.of(part), states.parts));
  for (const std::size_t i : reductions) {
    writer.finish(i);
    save(writer, lowering, to, i, state_index(at[1], groups));
  }
  e.close();
  e.finish();
  kernel.kernel.work = Extent(by * tile);
  return to;
}

}  // namespace segfuse::compiler
