#include "compiler/autodiff/padded.h"

#include <optional>

namespace segfuse::compiler {

using ir::Expr;
using ir::Extent;
using ir::Extents;
using ir::Op;
using ir::ValId;

namespace {

/// The axis with zeros; none if there are several, or something else than zeros.
std::optional<std::size_t> padded_axis(const ir::Fusion& fusion, const Expr& e) {
  if (e.op != Op::pad || e.attr<double>("value") != 0) return {};
  const auto& low = e.attr<Extents>("low");
  const auto& high = e.attr<Extents>("high");
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < low.size(); ++i) {
    if (fusion.equal(low[i], 0) && fusion.equal(high[i], 0)) continue;
    if (found) return {};
    found = i;
  }
  return found;
}

/// Values one behind the other, with zeros before and behind all of them.
struct Run {
  std::size_t axis = 0;
  std::vector<ValId> parts;
  Extent low, size, high;
};

Run run_of(const ir::Fusion& fusion, ValId val) {
  const Expr& e = fusion.expr(fusion.val(val).definition);
  const std::size_t axis = *padded_axis(fusion, e);
  return {axis,
          {e.operands[0]},
          e.attr<Extents>("low")[axis],
          fusion.val(e.operands[0]).shape[axis],
          e.attr<Extents>("high")[axis]};
}

/// Puts `next` behind `run` if that is where it lies.
bool append(const ir::Fusion& fusion, Run& run, const Run& next) {
  if (run.axis != next.axis || !fusion.equal(next.low, run.low + run.size)) return false;
  run.parts.insert(run.parts.end(), next.parts.begin(), next.parts.end());
  run.size = run.size + next.size;
  run.high = next.high;
  return true;
}

bool join_two(const ir::Fusion& fusion, std::vector<Run>& runs) {
  for (std::size_t i = 0; i < runs.size(); ++i) {
    for (std::size_t j = 0; j < runs.size(); ++j) {
      if (i == j || !append(fusion, runs[i], runs[j])) continue;
      runs.erase(runs.begin() + static_cast<std::ptrdiff_t>(j));
      return true;
    }
  }
  return false;
}

ValId value_of(ir::Builder& b, const Run& run) {
  const ValId joined = run.parts.size() > 1
                           ? b.concat(run.parts, static_cast<std::int64_t>(run.axis))
                           : run.parts[0];
  const bool whole = b.fusion().equal(run.low, 0) && b.fusion().equal(run.high, 0);
  return whole ? joined
               : b.pad_axis(joined, static_cast<std::int64_t>(run.axis), run.low, run.high, 0);
}

}  // namespace

bool is_padded(const ir::Fusion& fusion, ValId val) {
  const ir::ExprId definition = fusion.val(val).definition;
  return definition.valid() && padded_axis(fusion, fusion.expr(definition)).has_value();
}

ValId sum_of_padded(ir::Builder& builder, const std::vector<ValId>& all) {
  const ir::Fusion& fusion = builder.fusion();
  std::vector<Run> runs;
  for (const ValId val : all) runs.push_back(run_of(fusion, val));
  while (join_two(fusion, runs)) {
  }
  if (runs.size() == all.size()) {  // none lies beside another
    ValId sum = all[0];
    for (std::size_t i = 1; i < all.size(); ++i) sum = builder.add(sum, all[i]);
    return sum;
  }
  ValId sum;
  for (const Run& run : runs) {
    const ValId value = value_of(builder, run);
    sum = sum.valid() ? builder.add(sum, value) : value;
  }
  return sum;
}

}  // namespace segfuse::compiler
