#include "compiler/lower/lower.h"

#include <algorithm>

#include "base/check.h"
#include "compiler/lower/make.h"

namespace segfuse::compiler {

GroupLowering::GroupLowering(ir::Fusion& fusion, const SegmentedGroup& group, const GroupPlan& plan,
                             std::vector<ir::Alias> in_place, const SizeHints& hints,
                             std::string name)
    : state_(std::make_unique<GroupState>(fusion, group, plan, std::move(in_place), hints,
                                          std::move(name))) {}
GroupLowering::~GroupLowering() = default;

const Space& GroupLowering::space() const { return state_->space; }

namespace {

/// Kernels for one walk after the other, whose reductions go through memory.
void make_staged(Making& making) {
  const GroupState& group = making.group;
  int walks = 0;
  std::vector<std::size_t> all;
  for (std::size_t i = 0; i < group.reductions.size(); ++i) {
    walks = std::max(walks, group.reductions[i].walk + 1);
    all.push_back(i);
  }
  const ir::Extent rows =
      elements_of(group.space, axes_of(group.space, SpaceAxis::Role::kParallel));
  const StateMemory memory = making.add_states(all, rows);
  making.finished.assign(group.reductions.size(), {});
  for (int walk = 0; walk < walks; ++walk) {
    WalkKernel part;
    part.keep = true;
    for (const std::size_t i : all)
      if (group.reductions[i].walk == walk) part.reductions.push_back(i);
    if (part.reductions.empty()) continue;
    const StateMemory before = making.finished;
    for (const std::size_t i : part.reductions) making.finished[i] = memory[i];
    making.there = before;
    if (making.schedule.split > 0) {
      make_split_kernels(making, part);
    } else {
      make_walk_kernel(making, part);
    }
  }
  making.there = making.finished;
  std::vector<std::size_t> full;
  std::vector<std::size_t> others;
  for (std::size_t i = 0; i < group.results.size(); ++i)
    (group.results[i].full ? full : others).push_back(i);
  if (!others.empty()) make_result_kernel(making, others, false);
  if (!full.empty()) make_result_kernel(making, full, true);
}

}  // namespace

LoweredGroup GroupLowering::lower(const Schedule& schedule) const {
  const GroupState& group = *state_;
  LoweredGroup out;
  Making making{group, schedule, out, {}, {}};
  making.finished.assign(group.reductions.size(), {});
  making.there = making.finished;
  WalkKernel everything;
  int walks = 0;
  for (std::size_t i = 0; i < group.reductions.size(); ++i) {
    everything.reductions.push_back(i);
    walks = std::max(walks, group.reductions[i].walk + 1);
  }
  bool full = false;
  for (std::size_t i = 0; i < group.results.size(); ++i) {
    everything.results.push_back(i);
    full = full || group.results[i].full;
  }
  const bool rows = !axes_of(group.space, SpaceAxis::Role::kReduced).empty();
  switch (group.space.kind) {
    case PlanKind::kRowCol: make_row_col_kernels(making); break;
    case PlanKind::kTiledTranspose:
      if (group.space.cross >= 0) {
        make_transpose_kernel(making);
        break;
      }
      [[fallthrough]];
    default:
      if (rows && (schedule.staged || (schedule.split > 0 && (walks > 1 || full)))) {
        make_staged(making);
      } else if (rows && schedule.split > 0) {
        make_split_kernels(making, everything);
      } else {
        make_walk_kernel(making, everything);
      }
  }
  SEGFUSE_CHECK(!out.kernels.empty(), "a group has kernels");
  for (const GroupKernel& kernel : out.kernels) loop::verify(kernel.kernel);
  return out;
}

}  // namespace segfuse::compiler
