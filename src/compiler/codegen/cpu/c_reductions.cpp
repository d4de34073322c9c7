// Reductions in C. A state is a vector: its lanes are joined when it was begun outside of the lane
// loop. Several stand beside each other when the lane loop takes several vectors at once.

#include <fmt/core.h>

#include <set>

#include "compiler/codegen/cpu/c_statements.h"

namespace segfuse::compiler::cpu {

using namespace loop;
using ir::Monoid;

namespace {

/// What is carried along: f64 for a compensated sum of f32.
std::string_view state_type(const Reduction& reduction) {
  return reduction.compensated ? "f64" : lane_type(reduction.dtype);
}

}  // namespace

int CStatements::width(ReductionId id, const Lane* lane) const {
  return varying_.reduction(id) ? lane->count : widths_[id.index];
}

/// The state that the lane works on, or the first; `part` is "" or "_at".
std::string CStatements::state(ReductionId id, std::string_view part, const Lane* lane) const {
  const std::string name = fmt::format("r{}{}", id.index, part);
  if (width(id, lane) == 1) return name;
  return name + (lane != nullptr && lane->count > 1 ? "[u]" : "[0]");
}

/// States of the reductions begun in `body`, lane loops inside of it excepted.
void CStatements::declare_states(const std::vector<Statement>& body, const Lane* lane) {
  std::set<ReductionId> seen;
  walk(body, [&](const Statement& statement, int) {
    const auto* begin = std::get_if<Begin>(&statement.node);
    if (begin == nullptr || varying_.reduction(begin->reduction) != (lane != nullptr)) return;
    if (!seen.insert(begin->reduction).second) return;
    const Reduction& reduction = kernel_.reductions[begin->reduction.index];
    const int count = width(begin->reduction, lane);
    const std::string many = count > 1 ? fmt::format("[{}]", count) : "";
    const std::uint32_t r = begin->reduction.index;
    text_.line("sf_{} r{}{};", state_type(reduction), r, many);
    if (reduction.op == Monoid::kArgmax) text_.line("sf_i64 r{}_at{};", r, many);
  });
}

std::string CStatements::identity(ReductionId id) const {
  const Reduction& reduction = kernel_.reductions[id.index];
  const DType dtype = reduction.compensated ? DType::kF64 : reduction.dtype;
  return fmt::format("sf_all_{}({})", lane_type(dtype),
                     literal(dtype, ir::identity(reduction.op, dtype)));
}

void CStatements::print(const Begin& s, const Lane* lane) {
  const Reduction& reduction = kernel_.reductions[s.reduction.index];
  const int count = width(s.reduction, lane);
  const std::string many = count > 1 ? "[u]" : "";
  const std::string head = count > 1 ? fmt::format("SF_EACH({}, ", count) : "";
  const std::string_view tail = count > 1 ? ")" : "";
  const std::uint32_t r = s.reduction.index;
  text_.line("{}r{}{} = {};{}", head, r, many, identity(s.reduction), tail);
  if (reduction.op == Monoid::kArgmax)
    text_.line("{}r{}_at{} = sf_all_i64(0x7FFFFFFFFFFFFFFF);{}", head, r, many, tail);
}

/// The statement that brings `value` into the state `to` ("r0", "r0[u]").
std::string CStatements::step(ReductionId id, const std::string& to,
                              const std::string& value) const {
  const Reduction& reduction = kernel_.reductions[id.index];
  const std::string_view type = lane_type(reduction.dtype);
  return fmt::format("{} = sf_{}_{}({}, {});", to, ir::info(ir::joining(reduction.op)).name, type,
                     to, value);
}

void CStatements::print(const Accumulate& s, const Lane* lane) {
  const Reduction& reduction = kernel_.reductions[s.reduction.index];
  const std::string_view type = lane_type(reduction.dtype);
  const bool joined = !varying_.reduction(s.reduction);
  // Lanes that are not there must not count; outside of lane loops one of them does.
  std::string where;
  if (lane == nullptr) {
    where = "sf_lanes_below(1)";
  } else {
    where = lane->mask;
    if (where.empty() && lane->tail && joined) where = "sf_lanes_below(lanes)";
  }
  const std::string to = state(s.reduction, "", lane);
  std::string value = names_.vector(s.value, lane);
  if (reduction.op == Monoid::kArgmax) {
    each(lane, fmt::format("sf_argmax_step_{}(&{}, &{}, {}, {}, {});", type, to,
                           state(s.reduction, "_at", lane), value, names_.vector(s.position, lane),
                           where.empty() ? "sf_all_bool(1)" : where));
    return;
  }
  if (!where.empty() && reduction.compensated)
    value = fmt::format("sf_select_{}({}, {}, sf_all_{}(0))", type, where, value, type);
  if (!where.empty() && !reduction.compensated)
    value = fmt::format("sf_select_{}({}, {}, {})", type, where, value, identity(s.reduction));
  if (reduction.compensated) {
    each(lane, fmt::format("{} = sf_sum_step({}, {});", to, to, value));
  } else {
    each(lane, step(s.reduction, to, value));
  }
}

void CStatements::print(const Finish& s, const Lane* lane) {
  if (varying_.reduction(s.reduction)) {
    finish_lanes(s, lane);
  } else {
    join(s);
  }
}

/// States beside each other into the first, in order; then its lanes.
void CStatements::join(const Finish& s) {
  const Reduction& reduction = kernel_.reductions[s.reduction.index];
  const std::string_view type = lane_type(reduction.dtype);
  const std::uint32_t r = s.reduction.index;
  const int count = widths_[r];
  const std::string first = count > 1 ? "[0]" : "";
  for (int u = 1; u < count; ++u) {
    if (reduction.compensated) {
      text_.line("r{}[0] += r{}[{}];", r, r, u);
    } else if (reduction.op == Monoid::kArgmax) {
      text_.line("sf_argmax_step_{}(&r{}[0], &r{}_at[0], r{}[{}], r{}_at[{}], sf_all_bool(1));",
                 type, r, r, r, u, r, u);
    } else {
      text_.line("{}", step(s.reduction, fmt::format("r{}[0]", r), fmt::format("r{}[{}]", r, u)));
    }
  }
  std::string value;
  if (reduction.op == Monoid::kArgmax) {
    const std::string at = fmt::format("r{}_position", r);
    text_.line("int64_t {};", at);
    text_.line("const {} r{}_best = sf_argmax_join_{}(r{}{}, r{}_at{}, &{});",
               scalar_type(reduction.dtype), r, type, r, first, r, first, at);
    if (needed(s.results[0])) define(s.results[0], fmt::format("r{}_best", r), nullptr);
    if (s.results.size() > 1 && needed(s.results[1])) define(s.results[1], at, nullptr);
    text_.line("(void)r{}_best;", r);
    return;
  }
  if (!needed(s.results[0])) return;
  if (reduction.compensated) {
    value = fmt::format("(float)sf_join_sum_f64(r{}{})", r, first);
  } else {
    value = fmt::format("sf_join_{}_{}(r{}{})", ir::name_of(reduction.op), type, r, first);
  }
  define(s.results[0], rounded(s.results[0], value), nullptr);
}

void CStatements::finish_lanes(const Finish& s, const Lane* lane) {
  const Reduction& reduction = kernel_.reductions[s.reduction.index];
  const std::string to = state(s.reduction, "", lane);
  std::string value = to;
  if (reduction.compensated) value = fmt::format("sf_sum({})", to);
  if (needed(s.results[0])) define(s.results[0], rounded(s.results[0], value), lane);
  if (s.results.size() > 1 && needed(s.results[1])) {
    const std::string at = state(s.reduction, "_at", lane);
    define(s.results[1],
           fmt::format("sf_select_i64(sf_eq_i64({}, sf_all_i64(0x7FFFFFFFFFFFFFFF)), "
                       "sf_all_i64(0), {})",
                       at, at),
           lane);
  }
}

}  // namespace segfuse::compiler::cpu
