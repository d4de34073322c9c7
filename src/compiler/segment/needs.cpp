#include <algorithm>
#include <map>

#include "compiler/op_facts.h"
#include "compiler/segment/axes.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::Op;
using ir::OpClass;
using ir::ValId;
using Ints = std::vector<std::int64_t>;

namespace {

constexpr std::size_t kMaxPaths = 16;  // positions at which one value is computed
constexpr double kMaxAgain = 32;       // instructions, for an element of the largest value
constexpr double kMaxDear = 0.125;     // of the elements, for functions that cost more than memory

bool is_movement(Op op) { return ir::info(op).op_class == OpClass::kMovement; }

std::size_t sources_of(const Expr& e) { return e.op == Op::concat ? e.operands.size() : 1; }

}  // namespace

ReshapedAxes reshaped_axes(const ir::Fusion& fusion, const ir::Extents& from,
                           const ir::Extents& to) {
  ReshapedAxes result{std::vector<int>(to.size(), -1), std::vector<bool>(to.size(), false)};
  std::size_t i = 0;
  std::size_t j = 0;
  while (i < from.size() && j < to.size()) {
    ir::Extent left = from[i];
    ir::Extent right = to[j];
    std::size_t m = i + 1;
    std::size_t n = j + 1;
    // Longer products on both sides until they agree; the shorter one in symbols grows first.
    while (!fusion.equal(left, right) && (m < from.size() || n < to.size())) {
      const bool grow_left = m < from.size() && (n == to.size() || m - i <= n - j);
      if (grow_left) {
        left = left * from[m++];
      } else {
        right = right * to[n++];
      }
    }
    result.from[n - 1] = static_cast<int>(m - 1);
    result.exact[n - 1] = m == i + 1 && n == j + 1;
    i = m;
    j = n;
  }
  return result;
}

std::vector<int> kept_axes(const ir::Fusion& fusion, const Expr& move, std::size_t source) {
  const ir::Extents before = fusion.canonical(fusion.val(move.operands[source]).shape);
  const ir::Extents after = fusion.canonical(fusion.val(move.results[0]).shape);
  std::vector<int> to(before.size(), -1);
  if (move.op == Op::reshape) {
    const ReshapedAxes axes = reshaped_axes(fusion, before, after);
    for (std::size_t i = 0; i < after.size(); ++i)
      if (axes.exact[i]) to[static_cast<std::size_t>(axes.from[i])] = static_cast<int>(i);
    return to;
  }
  if (move.op == Op::slice || move.op == Op::pad) {
    for (std::size_t i = 0; i < before.size(); ++i)
      if (fusion.equal(before[i], after[i])) to[i] = static_cast<int>(i);
    return to;
  }
  const auto axis = static_cast<std::size_t>(move.attr<std::int64_t>("axis"));
  for (std::size_t i = 0; i < before.size(); ++i)
    if (i != axis) to[i] = static_cast<int>(i < axis ? i : i + after.size() - before.size());
  return to;
}

Needs::Needs(const GroupView& view, bool store_concats)
    : view_(view), fusion_(view.context.fusion()) {
  const bool any = std::any_of(view.exprs.begin(), view.exprs.end(), [&](ExprId id) {
    const Op op = fusion_.expr(id).op;
    return is_movement(op) && !keeps_positions(op);
  });
  if (!any) return;
  find_local();
  choose_sides(store_concats);
  if (moves_) follow();
}

const Needs::Need& Needs::of(ValId val) const {
  static const auto& kInPlace = *new Need{true, {}};
  static const auto& kNone = *new Need();
  if (!moves_) return kInPlace;
  const auto found = needs_.find(val.index);
  return found == needs_.end() ? kNone : found->second;
}

bool Needs::is_stored(ExprId id) const {
  return std::find(stored_.begin(), stored_.end(), id) != stored_.end();
}

void Needs::find_local() {
  for (const ExprId id : view_.exprs) {
    const Expr& e = fusion_.expr(id);
    const bool local = !is_movement(e.op) ||
                       std::any_of(e.operands.begin(),
                                   e.operands.begin() + static_cast<std::ptrdiff_t>(sources_of(e)),
                                   [&](ValId operand) { return is_local(operand); });
    if (!local) continue;
    for (const ValId result : e.results) local_.insert(result.index);
  }
}

/// Whether the operands may be written to where the movement puts them.
bool Needs::can_store(const Expr& e, bool store_concats) const {
  if (e.op == Op::reshape) return true;
  if (e.op != Op::concat || !store_concats) return false;
  return std::all_of(e.operands.begin(), e.operands.end(), [&](ValId operand) {
    return fusion_.equal(fusion_.val(operand).shape, fusion_.val(e.operands[0]).shape);
  });
}

void Needs::choose_sides(bool store_concats) {
  // Values that are only written, from the last one on.
  std::set<std::uint32_t> members;
  for (const ExprId id : view_.exprs) members.insert(id.index);
  std::set<std::uint32_t> written;
  for (std::size_t i = view_.exprs.size(); i-- > 0;) {
    const ExprId id = view_.exprs[i];
    const Expr& e = fusion_.expr(id);
    if (!is_movement(e.op)) continue;
    const auto& uses = fusion_.val(e.results[0]).uses;
    const bool only = std::all_of(uses.begin(), uses.end(), [&](ExprId user) {
      if (!members.contains(user.index)) return true;
      const Expr& u = fusion_.expr(user);
      return (keeps_positions(u.op) || u.op == Op::reshape) && written.contains(u.results[0].index);
    });
    if (only) written.insert(e.results[0].index);
    if (!is_local(e.results[0]) || keeps_positions(e.op)) continue;
    if (only && can_store(e, store_concats)) {
      stored_.push_back(id);
      stores_concat_ = stores_concat_ || e.op == Op::concat;
    } else {
      moves_ = true;
    }
  }
  std::reverse(stored_.begin(), stored_.end());
}

int Needs::path(ExprId move, int after) {
  const auto [known, fresh] = numbers_.try_emplace({move, after}, static_cast<int>(paths_.size()));
  if (fresh) paths_.push_back({move, after});
  return known->second;
}

/// From results to operands.
void Needs::follow() {
  for (const ValId output : view_.boundary.outputs) needs_[output.index].in_place = true;
  for (std::size_t i = view_.exprs.size(); i-- > 0;) {
    const ExprId id = view_.exprs[i];
    const Expr& e = fusion_.expr(id);
    Need all;
    for (const ValId result : e.results) {
      const Need& one = of(result);
      all.in_place = all.in_place || one.in_place;
      all.paths.insert(one.paths.begin(), one.paths.end());
    }
    if (all.paths.size() > kMaxPaths) too_many_ = true;
    if (too_many_) return;
    if (ir::info(e.op).op_class == OpClass::kReduction)
      all = {all.in_place || !all.paths.empty(), {}};
    Need moved = all;
    if (is_movement(e.op) && !is_local(e.results[0])) {
      moved = {};  // read from memory, wherever that is
    } else if (is_movement(e.op) && !keeps_positions(e.op) && !is_stored(id)) {
      moved = {};
      for (const int after : all.paths) moved.paths.insert(path(id, after));
      if (all.in_place) moved.paths.insert(path(id, -1));
    }
    for (std::size_t operand = 0; operand < e.operands.size(); ++operand) {
      const bool source = is_movement(e.op) && operand < sources_of(e);
      const Need& from = source ? moved : all;
      Need& need = needs_[e.operands[operand].index];
      need.in_place = need.in_place || from.in_place;
      need.paths.insert(from.paths.begin(), from.paths.end());
    }
  }
}

/// The value at the end of a path: what is computed at its own position.
ValId Needs::end_of(int path) const {
  while (paths_[static_cast<std::size_t>(path)].after >= 0)
    path = paths_[static_cast<std::size_t>(path)].after;
  return fusion_.result(paths_[static_cast<std::size_t>(path)].move);
}

std::optional<std::string> Needs::refused() const {
  if (too_many_) return "a value is moved to more than 16 positions";
  if (paths_.empty()) return {};
  const SegmentContext& context = view_.context;
  double largest = 1;
  for (const ExprId id : view_.exprs)
    for (const ValId result : fusion_.expr(id).results)
      largest = std::max(largest, static_cast<double>(context.elements(result)));
  double again = 0;
  for (const ExprId id : view_.exprs) {
    const Expr& e = fusion_.expr(id);
    if (ir::info(e.op).op_class == OpClass::kReduction || is_movement(e.op)) continue;
    const Need& need = of(e.results[0]);
    if (need.paths.empty()) continue;
    // Where it is computed, and where it would be if it were computed once.
    double here = 0;
    double once = 0;
    for (const int path : need.paths) {
      const Expr& move = fusion_.expr(paths_[static_cast<std::size_t>(path)].move);
      here += static_cast<double>(context.elements(end_of(path)));
      double most = 0;
      for (std::size_t i = 0; i < sources_of(move); ++i)
        most = std::max(most, static_cast<double>(context.elements(move.operands[i])));
      once = std::max(once, most);
    }
    if (need.in_place) here += once;
    const double more = std::max(0.0, here - once) / largest;
    if (!costs_less_than_memory(e.op) && more > kMaxDear)
      return "an expensive function of a moved value would be computed more than once";
    again += more * ir::info(e.op).instructions;
  }
  if (again > kMaxAgain) return "moved values would be computed again too often";
  return {};
}

}  // namespace segfuse::compiler
