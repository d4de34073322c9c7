#include "compiler/segment/report.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <numeric>

#include "compiler/segment/run_order.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::ExprId;
using ir::ValId;

namespace {

std::int64_t sum_bytes(const SegmentContext& context, const std::vector<ValId>& vals) {
  std::int64_t total = 0;
  for (const ValId val : vals) total += context.bytes(val);
  return total;
}

std::int64_t find_peak(const SegmentedFusion& segmented, const SegmentContext& context,
                       const std::vector<SegmentedGroup>& groups) {
  std::vector<Lifetime> lifetimes;
  std::map<ValId, std::size_t> index;
  for (const SegmentedGroup& group : groups) {
    for (const ValId output : group.boundary.outputs) {
      const bool in_place =
          std::any_of(segmented.in_place.begin(), segmented.in_place.end(),
                      [&](const ir::Alias& alias) { return alias.output == output; });
      index[output] = lifetimes.size();
      lifetimes.push_back(
          {group.id.index, {}, in_place ? 0 : context.bytes(output), context.is_output(output)});
    }
    for (const ValId input : group.boundary.inputs)
      if (const auto found = index.find(input); found != index.end())
        lifetimes[found->second].readers.push_back(group.id.index);
  }
  std::vector<std::uint32_t> order(groups.size());
  std::iota(order.begin(), order.end(), 0);
  return peak_bytes(order, lifetimes);
}

/// "x" for an input of that name, else "%7" by id.
std::string name(const ir::Fusion& fusion, ValId val) {
  for (const ir::Input& input : fusion.inputs())
    if (input.val == val) return fmt::format("'{}'", input.name);
  return fmt::format("%{}", val.index);
}

std::string list(const ir::Fusion& fusion, const std::vector<ValId>& vals) {
  std::vector<std::string> names;
  for (const ValId val : vals)
    names.push_back(name(fusion, val) + " " + std::string(name_of(fusion.val(val).dtype)) +
                    fusion.to_string(fusion.val(val).shape));
  return fmt::format("{}", fmt::join(names, ", "));
}

std::string space(const ir::Fusion& fusion, const IterationDomain& domain) {
  std::vector<std::string> axes;
  for (std::size_t i = 0; i < domain.axes.size(); ++i)
    axes.push_back(fusion.to_string(domain.axes[i]) + (domain.reduced[i] ? " reduced" : "") +
                   (domain.column_reduced[i] ? " summed" : ""));
  return fmt::format("[{}]", fmt::join(axes, ", "));
}

std::string operations(const ir::Fusion& fusion, const std::vector<ExprId>& exprs) {
  constexpr std::size_t kMax = 12;
  std::vector<std::string_view> names;
  for (const ExprId id : exprs) {
    if (names.size() == kMax) break;
    names.push_back(ir::info(fusion.expr(id).op).name);
  }
  const std::string more =
      exprs.size() > kMax ? fmt::format(" and {} more", exprs.size() - kMax) : "";
  return fmt::format("{}{}", fmt::join(names, " "), more);
}

}  // namespace

SegmentReport report(const SegmentedFusion& segmented) {
  const SegmentContext context(segmented.fusion(), segmented.hints());
  const std::vector<SegmentedGroup> groups = segmented.groups();
  SegmentReport result;
  std::vector<bool> read(segmented.fusion().storage().vals.size(), false);
  for (const SegmentedGroup& group : groups) {
    const GroupKind kind = segmented.domain(group.id).kind;
    const bool view = kind == GroupKind::kView;
    SegmentReport::Group row{kind, group.exprs.size(), 0, 0};
    if (!view) {
      row.read = sum_bytes(context, group.boundary.inputs);
      row.written = sum_bytes(context, group.boundary.outputs);
    }
    result.kernels += !view && kind != GroupKind::kLibrary;
    result.moved += row.read + row.written;
    result.groups.push_back(row);
    for (const ValId input : group.boundary.inputs) read[input.index] = true;
  }
  for (const ir::Input& input : segmented.fusion().inputs())
    if (read[input.val.index]) result.lower_bound += context.bytes(input.val);
  std::vector<bool> written(read.size(), false);
  for (const ir::Output& output : segmented.fusion().outputs()) {
    if (written[output.val.index] || !segmented.fusion().val(output.val).definition.valid())
      continue;
    written[output.val.index] = true;
    result.lower_bound += context.bytes(output.val);
  }
  result.peak = find_peak(segmented, context, groups);
  return result;
}

std::string describe(const SegmentedFusion& segmented) {
  const ir::Fusion& fusion = segmented.fusion();
  const SegmentReport numbers = report(segmented);
  std::string text = fmt::format(
      "{} groups, {} of them kernels; {} bytes moved, at least {}; {} bytes alive at most "
      "(symbols are {})\n",
      segmented.size(), numbers.kernels, numbers.moved, numbers.lower_bound, numbers.peak,
      segmented.hints().other);
  for (const SegmentedGroup& group : segmented.groups()) {
    const IterationDomain& domain = segmented.domain(group.id);
    const SegmentReport::Group& row = numbers.groups[group.id.index];
    text += fmt::format("group {}: {} over {}, {} bytes read, {} written\n", group.id.index,
                        name_of(domain.kind), space(fusion, domain), row.read, row.written);
    text += fmt::format("  reads  {}\n", list(fusion, group.boundary.inputs));
    text += fmt::format("  writes {}\n", list(fusion, group.boundary.outputs));
    text += fmt::format("  {}\n", operations(fusion, group.exprs));
  }
  for (const ir::Alias& alias : segmented.in_place)
    text += fmt::format("in place: {} over {}\n", name(fusion, alias.output),
                        name(fusion, alias.input));
  for (const Rejection& rejection : segmented.rejections)
    text += fmt::format("groups {} and {} stay apart: {}\n", rejection.first.index,
                        rejection.second.index, rejection.reason);
  return text;
}

}  // namespace segfuse::compiler
