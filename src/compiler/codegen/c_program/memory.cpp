#include "compiler/codegen/c_program/memory.h"

#include <fmt/core.h>

#include <algorithm>

#include "segfuse/error.h"

namespace segfuse::compiler::cpu {

using ir::ValId;

ProgramMemory::ProgramMemory(const ir::Fusion& fusion, std::span<const ProgramGroup> groups,
                             std::span<const ir::Alias> in_place)
    : fusion_(fusion), views_(fusion.storage().vals.size()) {
  for (const ProgramGroup& group : groups)
    if (group.kind == GroupKind::kView)
      for (const ir::ExprId id : group.group.exprs)
        views_[fusion.result(id).index] = fusion.expr(id).operands[0];
  for (std::size_t i = 0; i < fusion.inputs().size(); ++i)
    locations_[fusion.inputs()[i].val] = {Location::Kind::kInput, i};
  place_outputs(in_place);
  find_last_uses(groups);
  for (std::size_t g = 0; g < groups.size(); ++g) {
    for (const Workspace& workspace : groups[g].lowered.workspaces) {
      if (workspaces_.size() <= g) workspaces_.resize(g + 1);
      workspaces_[g].push_back(take(g, g, {workspace.dtype, {workspace.elements}}));
    }
    if (groups[g].kind == GroupKind::kView) continue;
    for (const ValId output : groups[g].group.boundary.outputs)
      if (!locations_.contains(output)) {
        const ir::Val& val = fusion.val(output);
        const auto used = last_use_.find(output);
        const std::size_t last = used == last_use_.end() ? g : std::max(g, used->second);
        locations_[output] = {Location::Kind::kSlot, take(g, last, {val.dtype, val.shape})};
      }
  }
}

ValId ProgramMemory::root(ValId val) const {
  while (views_.at(val.index).valid()) val = views_[val.index];
  return val;
}

const Location& ProgramMemory::location(ValId val) const {
  const auto found = locations_.find(root(val));
  if (found == locations_.end())
    throw InternalError(fmt::format("value {} has no memory", val.index));
  return found->second;
}

bool ProgramMemory::is_parameter(std::size_t output) const {
  const auto& aliases = fusion_.aliases();
  return std::none_of(aliases.begin(), aliases.end(), [&](const ir::Alias& alias) {
    return alias.output == fusion_.outputs()[output].val;
  });
}

bool ProgramMemory::overwritten(std::size_t input) const {
  const auto& aliases = fusion_.aliases();
  return std::any_of(aliases.begin(), aliases.end(), [&](const ir::Alias& alias) {
    return alias.input == fusion_.inputs()[input].val;
  });
}

/// Values are made where they have to be in the end.
void ProgramMemory::place_outputs(std::span<const ir::Alias> in_place) {
  for (const ir::Alias& alias : in_place) locations_[alias.output] = locations_.at(alias.input);
  for (std::size_t i = 0; i < fusion_.outputs().size(); ++i) {
    const ValId made = root(fusion_.outputs()[i].val);
    if (is_parameter(i) && !locations_.contains(made))
      locations_[made] = {Location::Kind::kOutput, i};
  }
}

void ProgramMemory::find_last_uses(std::span<const ProgramGroup> groups) {
  for (std::size_t g = 0; g < groups.size(); ++g)
    for (const ValId input : groups[g].group.boundary.inputs) last_use_[root(input)] = g;
  for (const ir::Output& output : fusion_.outputs()) last_use_[root(output.val)] = groups.size();
}

/// A slot that is free then, at best one that held the same size before.
std::size_t ProgramMemory::take(std::size_t first, std::size_t last, Slot::Member member) {
  std::size_t found = slots_.size();
  for (std::size_t i = 0; i < slots_.size(); ++i) {
    if (slots_[i].free_after >= first) continue;
    const auto& members = slots_[i].members;
    const bool same = std::any_of(members.begin(), members.end(), [&](const Slot::Member& other) {
      return size_of(other.dtype) == size_of(member.dtype) && other.shape == member.shape;
    });
    if (same || found == slots_.size()) found = i;
    if (same) break;
  }
  if (found == slots_.size()) slots_.emplace_back();
  slots_[found].free_after = last;
  slots_[found].members.push_back(std::move(member));
  return found;
}

std::vector<std::string> ProgramMemory::offsets(SizeTable& sizes) const {
  std::vector<std::string> offsets = {"0"};
  for (const Slot& slot : slots_) {
    std::string most = "0";
    for (const Slot::Member& member : slot.members)
      most = sizes.greater(most, sizes.bytes(sizes.elements(member.shape), member.dtype));
    offsets.push_back(sizes.sum(offsets.back(), sizes.rounded(most)));
  }
  return offsets;
}

}  // namespace segfuse::compiler::cpu
