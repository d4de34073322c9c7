#include "compiler/lower/lower.h"

#include <fmt/core.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "base/check.h"
#include "compiler/lower/kernel_makers.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

namespace {

/// What the standard library finds wrong here is a fault of ours as well.
template <class Function>
auto ours(const std::string& kernel, Function&& function) {
  try {
    return function();
  } catch (const std::logic_error& error) {
    throw InternalError(fmt::format("no kernel '{}' can be made: {}", kernel, error.what()));
  } catch (const std::bad_variant_access& error) {
    throw InternalError(fmt::format("no kernel '{}' can be made: {}", kernel, error.what()));
  }
}

}  // namespace

GroupLowering::GroupLowering(ir::Fusion& fusion, const SegmentedGroup& group,
                             const IterationDomain& domain, std::vector<ir::Alias> in_place,
                             const SizeHints& hints, std::string name, bool excess_precision)
    : analysis_(ours(name, [&] {
        return std::make_unique<GroupAnalysis>(fusion, group, domain, std::move(in_place), hints,
                                               name, excess_precision);
      })) {}
GroupLowering::~GroupLowering() = default;

const Space& GroupLowering::space() const { return analysis_->space; }

namespace {

/// The axes that a result runs along.
std::vector<std::size_t> axes_along(const GroupAnalysis& group, const GroupResult& result) {
  std::vector<std::size_t> axes;
  for (std::size_t axis = 0; axis < group.collapsed.size(); ++axis)
    if (result.along[group.collapsed[axis][0]]) axes.push_back(axis);
  return axes;
}

/// Results whose reductions are finished, in kernels by the axes that they run along.
void make_results(Lowering& lowering, const std::vector<std::size_t>& results) {
  std::map<std::vector<std::size_t>, std::vector<std::size_t>> by_axes;
  for (const std::size_t i : results)
    by_axes[axes_along(lowering.group, lowering.group.results[i])].push_back(i);
  for (const auto& [axes, along] : by_axes) make_result_kernel(lowering, along, axes);
}

/// Kernels for one walk after the other, whose reductions go through memory.
void make_staged(Lowering& lowering, const WalkKernel& whole) {
  const GroupAnalysis& group = lowering.group;
  const std::vector<std::size_t>& all = whole.reductions;
  const ir::Extent rows =
      elements_of(group.space, axes_of(group.space, SpaceAxis::Role::kParallel));
  const StateWorkspaces memory = lowering.add_states(all, rows);
  for (int walk = 0; walk < group.walks_of(all); ++walk) {
    WalkKernel part;
    part.keep = true;
    part.absent = whole.absent;
    for (const std::size_t i : all)
      if (group.reductions[i].walk == walk) part.reductions.push_back(i);
    if (part.reductions.empty()) continue;
    lowering.ready = lowering.finished;
    for (const std::size_t i : part.reductions) lowering.finished[i] = memory[i];
    if (lowering.schedule.split > 0 && part.absent.empty()) {
      make_split_kernels(lowering, part);
    } else {
      make_walk_kernel(lowering, part);
    }
  }
  lowering.ready = lowering.finished;
  make_results(lowering, whole.results);
}

/// The reductions that results depend on.
std::vector<std::size_t> needed(const GroupAnalysis& group,
                                const std::vector<std::size_t>& results) {
  std::set<std::size_t> all;
  for (const std::size_t i : results)
    for (const std::size_t r : group.reductions_of(group.results[i].root)) all.insert(r);
  return {all.begin(), all.end()};
}

/// Results by the parallel axes along which they run: others would be computed again and again, and
/// not at all when an axis that they do not have is empty. The whole space comes first.
std::vector<WalkKernel> parts_of(const GroupAnalysis& group) {
  const auto parallel = axes_of(group.space, SpaceAxis::Role::kParallel);
  std::map<std::vector<std::size_t>, std::vector<std::size_t>> by_absent;
  for (std::size_t i = 0; i < group.results.size(); ++i) {
    std::vector<std::size_t> absent;
    for (const std::size_t axis : parallel)
      if (!group.results[i].along[group.collapsed[axis][0]]) absent.push_back(axis);
    by_absent[absent].push_back(i);
  }
  std::vector<WalkKernel> parts;
  for (auto& [absent, results] : by_absent)
    parts.push_back({needed(group, results), results, absent, false});
  return parts;
}

/// Whether a kernel reads memory that one before it has overwritten in place.
bool reads_overwritten(const GroupAnalysis& group, const LoweredGroup& lowered) {
  std::set<ir::ValId> overwritten;
  for (const GroupKernel& kernel : lowered.kernels) {
    std::set<ir::ValId> now;
    std::size_t next = 0;
    for (const loop::KernelBuffer& buffer : kernel.kernel.buffers) {
      if (buffer.kind == loop::KernelBuffer::Kind::kRow) continue;
      const Operand& operand = kernel.operands[next++];
      if (!operand.val.valid()) continue;
      if (buffer.kind != loop::KernelBuffer::Kind::kOutput && overwritten.contains(operand.val))
        return true;
      const bool in_place =
          std::any_of(group.in_place.begin(), group.in_place.end(),
                      [&](const ir::Alias& alias) { return alias.input == operand.val; });
      if (in_place && buffer.kind != loop::KernelBuffer::Kind::kInput) now.insert(operand.val);
    }
    overwritten.merge(now);
  }
  return false;
}

/// Whether a kernel loads from memory after it has stored there in place.
bool loads_overwritten(const GroupAnalysis& group, const GroupKernel& kernel) {
  std::set<loop::BufferId> in_place;
  std::size_t next = 0;
  for (std::uint32_t i = 0; i < kernel.kernel.buffers.size(); ++i) {
    if (kernel.kernel.buffers[i].kind == loop::KernelBuffer::Kind::kRow) continue;
    const ir::ValId val = kernel.operands[next++].val;
    if (std::any_of(group.in_place.begin(), group.in_place.end(),
                    [&](const ir::Alias& alias) { return val.valid() && alias.input == val; }))
      in_place.insert({i});
  }
  std::set<loop::BufferId> stored;
  bool found = false;
  loop::walk(kernel.kernel.body, [&](const loop::Statement& statement, int) {
    if (const auto* store = std::get_if<loop::Store>(&statement.node)) stored.insert(store->buffer);
    if (const auto* load = std::get_if<loop::Load>(&statement.node))
      found = found || (in_place.contains(load->buffer) && stored.contains(load->buffer));
  });
  return found;
}

/// Results along the whole space, by the schedule.
void make_whole(Lowering& lowering, const WalkKernel& part) {
  const GroupAnalysis& group = lowering.group;
  const Schedule& schedule = lowering.schedule;
  const int walks = group.walks_of(part.reductions);
  const bool full = std::any_of(part.results.begin(), part.results.end(),
                                [&](std::size_t i) { return group.results[i].full; });
  const bool rows = !axes_of(group.space, SpaceAxis::Role::kReduced).empty();
  // Full results that parts of rows store on their way.
  const bool on_the_way =
      schedule.hold != Hold::kScratch &&
      std::all_of(part.results.begin(), part.results.end(), [&](std::size_t i) {
        return !group.results[i].full || (group.results[i].walk == 0 && needed(group, {i}).empty());
      });
  if (group.space.kind == GroupKind::kTiledTranspose && group.space.cross >= 0) {
    make_transpose_kernel(lowering, part.results);
  } else if (rows &&
             (schedule.staged || (schedule.split > 0 && (walks > 1 || (full && !on_the_way))))) {
    make_staged(lowering, part);
  } else if (rows && schedule.split > 0 && walks > 0) {
    make_split_kernels(lowering, part);
  } else {
    make_walk_kernel(lowering, part);
  }
}

/// Takes from `results` those that a walk over the reduced axes would write again and again, and
/// not at all where an axis that they do not have is empty.
std::vector<std::size_t> take_apart(const GroupAnalysis& group, std::vector<std::size_t>& results) {
  const auto reduced = axes_of(group.space, SpaceAxis::Role::kReduced);
  const auto lacks_one = [&](std::size_t i) {
    return group.results[i].full &&
           std::any_of(reduced.begin(), reduced.end(), [&](std::size_t axis) {
             return !group.results[i].along[group.collapsed[axis][0]];
           });
  };
  std::vector<std::size_t> apart;
  std::copy_if(results.begin(), results.end(), std::back_inserter(apart), lacks_one);
  std::erase_if(results, lacks_one);
  return apart;
}

void make_part(Lowering& lowering, WalkKernel part) {
  const GroupAnalysis& group = lowering.group;
  const std::vector<std::size_t> all = part.results;
  const std::vector<std::size_t> apart = take_apart(group, part.results);
  if (!needed(group, apart).empty()) {
    part.results = all;
    return make_staged(lowering, part);
  }
  make_results(lowering, apart);
  if (part.results.empty()) return;
  if (part.absent.empty()) return make_whole(lowering, part);
  make_walk_kernel(lowering, part);
}

LoweredGroup make_parts(const GroupAnalysis& group, const Schedule& schedule,
                        const std::vector<WalkKernel>& parts) {
  LoweredGroup out;
  for (const WalkKernel& part : parts) {
    Lowering lowering(group, schedule, out);
    make_part(lowering, part);
  }
  return out;
}

/// Rows with columns; what no reduction is needed for and lacks an axis is apart.
LoweredGroup make_row_col(const GroupAnalysis& group, const Schedule& schedule) {
  LoweredGroup out;
  Lowering lowering(group, schedule, out);
  std::vector<std::size_t> with;
  std::vector<std::size_t> apart;
  for (std::size_t i = 0; i < group.results.size(); ++i) {
    const bool alone = needed(group, {i}).empty() &&
                       axes_along(group, group.results[i]).size() < group.space.axes.size();
    (alone ? apart : with).push_back(i);
  }
  make_results(lowering, apart);
  make_row_col_kernels(lowering, with);
  return out;
}

/// Kernels that overwrite what others read come last, or all results are in one.
LoweredGroup make_all(const GroupAnalysis& group, const Schedule& schedule) {
  std::vector<WalkKernel> parts = parts_of(group);
  LoweredGroup out = make_parts(group, schedule, parts);
  if (parts.size() == 1 || !reads_overwritten(group, out)) return out;
  std::reverse(parts.begin(), parts.end());
  out = make_parts(group, schedule, parts);
  if (!reads_overwritten(group, out)) return out;
  std::vector<std::size_t> all(group.results.size());
  std::iota(all.begin(), all.end(), 0U);
  out = {};
  Lowering lowering(group, schedule, out);
  make_walk_kernel(lowering, {needed(group, all), all});
  return out;
}

LoweredGroup lower_by(const GroupAnalysis& group, const Schedule& schedule) {
  LoweredGroup out = group.space.kind == GroupKind::kRowCol ? make_row_col(group, schedule)
                                                            : make_all(group, schedule);
  SEGFUSE_CHECK(!out.kernels.empty(), "a group has kernels");
  const loop::SizeFacts facts{
      [&](const ir::Extent& a, const ir::Extent& b) { return group.fusion.equal(a, b); },
      [&](const ir::Extent& size, std::int64_t by) { return group.ceil_divide(size, by); }};
  // Where a program requires sizes to be equal, it may know more than can be followed here.
  const bool follows = group.fusion.storage().requirements.empty();
  for (const GroupKernel& kernel : out.kernels) {
    loop::verify(kernel.kernel);
    SEGFUSE_CHECK(!loads_overwritten(group, kernel), "what is overwritten in place is read before");
    if (follows) loop::verify_writes(kernel.kernel, facts);
  }
  return out;
}

}  // namespace

LoweredGroup GroupLowering::lower(const Schedule& schedule) const {
  return ours(analysis_->name, [&] { return lower_by(*analysis_, schedule); });
}

std::string function_name(GroupKind kind) {
  switch (kind) {
    case GroupKind::kPointwise: return "pointwise";
    case GroupKind::kTiledTranspose: return "transpose";
    case GroupKind::kReduce: return "reduce";
    case GroupKind::kRowNorm: return "row_norm";
    case GroupKind::kColNorm: return "col_norm";
    case GroupKind::kRowCol: return "row_col";
    default: return "kernel";
  }
}

}  // namespace segfuse::compiler
