#include "compiler/segment/segmented_fusion.h"

#include <algorithm>

#include "base/check.h"

namespace segfuse::compiler {

using ir::ExprId;
using ir::ValId;

SegmentedFusion::SegmentedFusion(ir::Fusion fusion, const SizeHints& hints,
                                 std::vector<GroupId> group_of,
                                 std::vector<IterationDomain> domains)
    : fusion_(std::move(fusion)),
      hints_(hints),
      group_of_(std::move(group_of)),
      domains_(std::move(domains)) {}

std::vector<SegmentedGroup> SegmentedFusion::groups() const {
  const SegmentContext context(fusion_, hints_);
  std::vector<SegmentedGroup> all(size());
  for (std::uint32_t i = 0; i < all.size(); ++i) all[i].id = GroupId{i};
  for (const ExprId id : context.order())
    if (group_of(id).valid()) all[group_of(id).index].exprs.push_back(id);
  for (SegmentedGroup& group : all) group.boundary = context.boundary(group.exprs);
  return all;
}

std::vector<SegmentedEdge> SegmentedFusion::edges() const {
  std::vector<SegmentedEdge> all;
  for (const SegmentedGroup& group : groups()) {
    for (const ValId input : group.boundary.inputs) {
      const ExprId definition = fusion_.val(input).definition;
      if (definition.valid()) all.push_back({group_of(definition), group.id, input});
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

void SegmentedFusion::verify() const {
  const SegmentContext context(fusion_, hints_);
  SEGFUSE_CHECK(group_of_.size() == fusion_.storage().exprs.size(), "one entry an expression");
  for (const ExprId id : context.order()) {
    const GroupId group = group_of(id);
    SEGFUSE_CHECK(group.valid() == context.in_group(id), "expression {} is in a group", id.index);
    SEGFUSE_CHECK(!group.valid() || group.index < size(), "group {} exists", group.index);
  }
  for (const SegmentedGroup& group : groups()) {
    SEGFUSE_CHECK(!group.exprs.empty(), "group {} holds something", group.id.index);
    for (const ValId input : group.boundary.inputs) {
      const ExprId definition = fusion_.val(input).definition;
      SEGFUSE_CHECK(!definition.valid() || group_of(definition) < group.id,
                    "value {} is written before group {} reads it", input.index, group.id.index);
      for (const ir::Alias& alias : in_place)
        SEGFUSE_CHECK(
            alias.input != input || !(group_of(fusion_.val(alias.output).definition) < group.id),
            "input value {} is read before it is overwritten", input.index);
    }
  }
}

}  // namespace segfuse::compiler
