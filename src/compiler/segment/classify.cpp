#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <set>

#include "compiler/op_facts.h"
#include "compiler/segment/axes.h"
#include "segfuse/error.h"

namespace segfuse::compiler {

using ir::ExprId;
using ir::Op;
using ir::ValId;

namespace {

constexpr int kMaxLive = 64;        // registers of a thread, generously
constexpr int kStateRegisters = 3;  // of a state that is carried along: twice for what is lost
constexpr std::size_t kMaxBuffers = 256;  // parameters: a launch takes 4 KB everywhere
constexpr int kMaxWork = 1024;            // of the text that is compiled, in cheap operations
constexpr int kFunctionWork = 32;         // of an elementary function in it
constexpr std::int64_t kMaxInOneRow = std::int64_t{1} << 16;  // elements that one block may walk

class Classification {
 public:
  Classification(const GroupView& view, const GroupAxes& axes)
      : view_(view), context_(view.context), axes_(axes), taint_(axes.placed().size(), 0) {}

  Verdict run();

 private:
  std::uint64_t mask(ValId val) const { return axes_.mask(placed(val)); }
  const Placed& placed(ValId val) const {
    return axes_.placed()[static_cast<std::size_t>(axes_.slot(val))];
  }
  int innermost(const Placed& placed) const;
  std::uint64_t footprint(const Placed& placed) const;
  void find_innermost();
  void follow_reductions();
  [[nodiscard]] std::optional<std::string> choose_kind();
  [[nodiscard]] std::optional<std::string> choose_two_sets();
  [[nodiscard]] std::optional<std::string> check_in_place() const;
  bool depends(ValId val, ValId input) const;
  int most_alive() const;
  int states() const;
  [[nodiscard]] std::optional<std::string> check_amounts();
  bool only_views() const;
  void describe();

  const GroupView& view_;
  const SegmentContext& context_;
  const GroupAxes& axes_;
  std::vector<std::uint64_t> taint_;  // by slot: axes of the reductions that the value depends on
  std::uint64_t renewed_ = 0;         // reduced axes that something runs along again afterwards
  std::vector<std::uint64_t> sets_;   // the sets of reduced axes
  std::vector<int> inner_;            // classes that are innermost in memory for full accesses
  std::uint64_t rows_ = 0;
  std::uint64_t columns_ = 0;
  IterationDomain domain_;
};

/// The class of the axis that is innermost in memory; -1 if none is.
int Classification::innermost(const Placed& p) const {
  if (p.place != Place::kLoad) {
    for (std::size_t i = p.nodes.size(); i-- > 0;) {
      const auto& shape = context_.fusion().val(p.val).shape;
      if (p.nodes[i] >= 0) return axes_.class_of(p.nodes[i]);
      if (!context_.fusion().equal(shape[i], 1)) return -1;
    }
    return -1;
  }
  if (!p.base.valid()) return -1;
  const auto& base = context_.fusion().val(p.base).shape;
  int last = p.base_rank - 1;
  while (last >= 0 && context_.fusion().equal(base[static_cast<std::size_t>(last)], 1)) --last;
  for (std::size_t i = 0; i < p.nodes.size(); ++i)
    if (last >= 0 && p.memory[i] == last) return axes_.class_of(p.nodes[i]);
  return -1;
}

/// The axes along which a load finds other elements; of one with index arithmetic all.
std::uint64_t Classification::footprint(const Placed& p) const {
  if (!p.linear) return axes_.mask(p);
  std::vector<int> nodes = p.nodes;
  for (std::size_t i = 0; i < nodes.size(); ++i)
    if (p.memory[i] < 0) nodes[i] = -1;
  return axes_.mask(nodes);
}

/// Of all loads and stores over the whole space.
void Classification::find_innermost() {
  auto note = [&](int axis) {
    if (axis >= 0 && std::find(inner_.begin(), inner_.end(), axis) == inner_.end())
      inner_.push_back(axis);
  };
  for (const Placed& p : axes_.placed())
    if (p.touched && p.place == Place::kLoad && footprint(p) == axes_.space()) note(innermost(p));
  for (const ValId output : view_.boundary.outputs) {
    const Placed& p = placed(output);
    if (p.place == Place::kLoad) {  // a copy is written in its own order
      for (std::size_t i = p.nodes.size(); i-- > 0;)
        if (p.nodes[i] >= 0) {
          if (axes_.mask(p) == axes_.space()) note(axes_.class_of(p.nodes[i]));
          break;
        }
    } else if (axes_.mask(p) == axes_.space()) {
      note(innermost(p));
    }
  }
}

void Classification::follow_reductions() {
  std::size_t next = 0;
  for (const ExprId id : view_.exprs) {
    const ir::Expr& e = context_.fusion().expr(id);
    std::uint64_t all = 0;
    for (const ValId operand : e.operands)
      if (const int s = axes_.slot(operand); s >= 0) all |= taint_[static_cast<std::size_t>(s)];
    const auto& reductions = axes_.reductions();
    if (next < reductions.size() && reductions[next].id == id)
      all |= axes_.mask(reductions[next++].nodes);
    for (const ValId result : e.results) {
      taint_[static_cast<std::size_t>(axes_.slot(result))] = all;
      if (placed(result).touched) renewed_ |= all & mask(result);
    }
  }
}

std::optional<std::string> Classification::choose_two_sets() {
  if (sets_.size() > 2 || (sets_[0] & sets_[1]) != 0)
    return "reductions over different axes that no kernel holds together";
  const std::uint64_t inner = inner_.empty() ? 0 : std::uint64_t{1} << inner_[0];
  rows_ = (sets_[0] & inner) != 0 ? sets_[0] : sets_[1];
  columns_ = sets_[0] ^ sets_[1] ^ rows_;
  if ((rows_ & inner) == 0) return "two sets of reduced axes, and neither is innermost";
  if ((renewed_ & columns_) != 0) return "sums of columns are used again where they are summed";
  for (const ReducedNodes& reduction : axes_.reductions()) {
    const Placed& operand = axes_.placed()[static_cast<std::size_t>(reduction.operand)];
    const bool column = axes_.mask(reduction.nodes) == columns_;
    if (column && !is_monoid(context_.fusion().expr(reduction.id).op))
      return "a reduction of columns that takes more than one walk";
    if (column && (axes_.mask(operand) & rows_) != rows_)
      return "a reduction of the result of a reduction";
    if (!column && (taint_[static_cast<std::size_t>(reduction.operand)] & columns_) != 0)
      return "a reduction of the result of a reduction";
    // Else a kernel over the whole space would not compute it where another axis is empty.
    if (axes_.mask(operand) != axes_.space())
      return "rows and columns, and a reduction that does not run along all axes";
  }
  domain_.kind = GroupKind::kRowCol;
  return {};
}

std::optional<std::string> Classification::choose_kind() {
  for (const ReducedNodes& reduction : axes_.reductions()) {
    const std::uint64_t set = axes_.mask(reduction.nodes);
    if (std::find(sets_.begin(), sets_.end(), set) == sets_.end()) sets_.push_back(set);
  }
  follow_reductions();
  if (sets_.empty()) {
    if (inner_.size() > 2) return "more than two innermost orders";
    domain_.kind = inner_.size() == 2 ? GroupKind::kTiledTranspose : GroupKind::kPointwise;
    if (only_views()) domain_.kind = GroupKind::kView;
    return {};
  }
  if (inner_.size() > 1) return "a reduction with two innermost orders";
  if (sets_.size() > 1) return choose_two_sets();
  rows_ = sets_[0];
  if (renewed_ == 0) {
    domain_.kind = GroupKind::kReduce;
    return {};
  }
  const Placed& spanning = *axes_.spanning();
  if (rows_ == axes_.space() && context_.elements(spanning.val) > kMaxInOneRow)
    return "one row holds the whole tensor, so one block would do all the work";
  const bool inner_reduced = !inner_.empty() && ((rows_ >> inner_[0]) & 1U) != 0;
  domain_.kind = inner_reduced ? GroupKind::kRowNorm : GroupKind::kColNorm;
  return {};
}

/// Only other shapes of contiguous memory.
bool Classification::only_views() const {
  return std::all_of(view_.exprs.begin(), view_.exprs.end(), [&](ExprId id) {
    const ir::Expr& e = context_.fusion().expr(id);
    if (context_.is_free(id)) return false;
    if (e.op == Op::reshape || e.op == Op::squeeze) return true;
    return e.op == Op::broadcast &&
           context_.elements(e.operands[0]) == context_.elements(e.results[0]) &&
           placed(e.results[0]).linear &&
           std::popcount(mask(e.results[0])) ==
               std::popcount(axes_.mask(placed(e.operands[0]).nodes));
  });
}

/// Values over the whole space that are alive at once, in the order of the group.
int Classification::most_alive() const {
  std::vector<int> uses(axes_.placed().size(), 0);
  auto full = [&](int slot) {
    const Placed& p = axes_.placed()[static_cast<std::size_t>(slot)];
    return p.touched && p.place == Place::kLocal && axes_.mask(p) == axes_.space();
  };
  for (const ExprId id : view_.exprs)
    for (const ValId operand : context_.fusion().expr(id).operands)
      if (const int s = axes_.slot(operand); s >= 0) ++uses[static_cast<std::size_t>(s)];
  int alive = 0;
  int most = 0;
  for (const ExprId id : view_.exprs) {
    const ir::Expr& e = context_.fusion().expr(id);
    for (const ValId result : e.results)
      alive += full(axes_.slot(result)) && uses[static_cast<std::size_t>(axes_.slot(result))] > 0;
    most = std::max(most, alive);
    for (const ValId operand : e.operands) {
      const int s = axes_.slot(operand);
      if (s >= 0 && --uses[static_cast<std::size_t>(s)] == 0) alive -= full(s);
    }
  }
  return most;
}

/// What reductions carry along a walk.
int Classification::states() const {
  int all = 0;
  for (const ReducedNodes& reduction : axes_.reductions())
    all += carried_values(context_.fusion().expr(reduction.id).op);
  return all;
}

/// Registers, parameters, and the time that a compiler takes. An expression alone is a kernel in
/// any case.
std::optional<std::string> Classification::check_amounts() {
  domain_.live = most_alive();
  const int carried = kStateRegisters * states();
  if (view_.exprs.size() == 1) return {};
  if (domain_.live > kMaxLive)
    return fmt::format("{} values over the whole space are alive at once, more than {}",
                       domain_.live, kMaxLive);
  if (domain_.live + carried > kMaxLive)
    return fmt::format(
        "{} values over the whole space are alive at once beside {} states of reductions, more "
        "than {} registers",
        domain_.live, states(), kMaxLive);
  const std::size_t buffers = view_.boundary.inputs.size() + view_.boundary.outputs.size();
  if (buffers > kMaxBuffers)
    return fmt::format("{} inputs and outputs, more than {}", buffers, kMaxBuffers);
  int work = 0;
  for (const ExprId id : view_.exprs)
    work += costs_more_than_a_load(context_.fusion().expr(id).op) ? kFunctionWork : 1;
  if (work > kMaxWork)
    return fmt::format("compilation would cost as much as {} additions, more than {}", work,
                       kMaxWork);
  return {};
}

/// Whether `val` is computed in the group from elements of `input`.
bool Classification::depends(ValId val, ValId input) const {
  std::vector<ValId> open{val};
  std::set<ValId> visited;
  while (!open.empty()) {
    const ValId next = open.back();
    open.pop_back();
    if (next == input) return true;
    const ExprId definition = context_.fusion().val(next).definition;
    if (!visited.insert(next).second || !definition.valid()) continue;
    if (std::find(view_.exprs.begin(), view_.exprs.end(), definition) == view_.exprs.end()) {
      if (storage_root(context_.fusion(), next) == input) return true;
      continue;
    }
    const auto& operands = context_.fusion().expr(definition).operands;
    open.insert(open.end(), operands.begin(), operands.end());
  }
  return false;
}

/// An input that this kernel overwrites may only be read where it is written, by an elementwise
/// expression, or by the reduction of a row that one block holds. What runs along all axes is
/// overwritten by the lane that reads it, after all that needs it (GroupAnalysis::order_stores).
/// What lacks an axis is read by many lanes and written by one of them, so no other output may
/// need it.
std::optional<std::string> Classification::check_in_place() const {
  for (const ir::Alias& alias : view_.in_place) {
    const int to = axes_.slot(alias.output);
    if (to < 0) continue;
    const bool defined_here =
        std::any_of(view_.boundary.outputs.begin(), view_.boundary.outputs.end(),
                    [&](ValId output) { return output == alias.output; });
    if (!defined_here) continue;
    if (mask(alias.output) != axes_.space())
      for (const ValId output : view_.boundary.outputs)
        if (output != alias.output && depends(output, alias.input))
          return "an input of fewer axes is overwritten in place while another output reads it";
    for (const Placed& p : axes_.placed()) {
      if (p.place != Place::kLoad) continue;
      if (p.base != alias.input) {
        // A concat has the base of its first operand, an indexed value that of its table.
        if (depends(p.val, alias.input))
          return "an input is overwritten in place while it is still read";
        continue;
      }
      bool same = p.val == alias.input;
      const Placed& written = axes_.placed()[static_cast<std::size_t>(to)];
      for (std::size_t i = 0; same && i < p.nodes.size(); ++i)
        same = axes_.class_of(p.nodes[i]) == axes_.class_of(written.nodes[i]);
      if (domain_.kind != GroupKind::kPointwise && domain_.kind != GroupKind::kRowNorm)
        same = same && (axes_.mask(written) & (rows_ | columns_)) == 0;
      const bool moved = !axes_.needs().of(p.val).paths.empty();
      if ((!same && p.touched) || moved)
        return "an input is overwritten in place while it is still read";
    }
  }
  return {};
}

void Classification::describe() {
  const Placed& spanning = *axes_.spanning();
  domain_.stored = axes_.needs().stored();
  std::vector<int> position(64, -1);
  for (const int node : spanning.nodes) {
    if (node < 0) continue;
    const auto number = static_cast<std::size_t>(axes_.class_of(node));
    position[number] = static_cast<int>(domain_.axes.size());
    domain_.axes.push_back(axes_.extent_of(node));
    domain_.reduced.push_back(((rows_ >> number) & 1U) != 0);
    domain_.column_reduced.push_back(((columns_ >> number) & 1U) != 0);
  }
  if (!inner_.empty()) domain_.inner = position[static_cast<std::size_t>(inner_[0])];
  for (const Placed& p : axes_.placed()) {
    if (!p.touched) continue;
    IterationDomain::ValueAxes known{p.val, {}};
    for (const int node : p.nodes) {
      const int number = axes_.class_of(node);
      known.axes.push_back(number < 0 ? -1 : position[static_cast<std::size_t>(number)]);
    }
    domain_.value_axes.push_back(std::move(known));
  }
}

Verdict Classification::run() {
  find_innermost();
  if (auto reason = choose_kind()) return {{}, std::move(*reason)};
  if (auto reason = check_in_place()) return {{}, std::move(*reason)};
  if (auto reason = check_amounts()) return {{}, std::move(*reason)};
  describe();
  return {std::move(domain_), {}};
}

}  // namespace

std::string_view name_of(GroupKind kind) {
  switch (kind) {
    case GroupKind::kView: return "View";
    case GroupKind::kPointwise: return "Pointwise";
    case GroupKind::kTiledTranspose: return "TiledTranspose";
    case GroupKind::kReduce: return "Reduce";
    case GroupKind::kRowNorm: return "RowNorm";
    case GroupKind::kColNorm: return "ColNorm";
    case GroupKind::kRowCol: return "RowCol";
    case GroupKind::kLibrary: return "Library";
  }
  throw InternalError("a kind of group without a name");
}

Verdict classify(const GroupView& view) {
  const ir::Fusion& fusion = view.context.fusion();
  for (const ExprId id : view.exprs) {
    const Op op = fusion.expr(id).op;
    if (!runs_alone(op)) continue;
    if (view.exprs.size() > 1) return {{}, fmt::format("'{}' runs alone", ir::info(op).name)};
    IterationDomain domain;
    domain.kind = GroupKind::kLibrary;
    return {std::move(domain), {}};
  }
  Verdict verdict;
  for (const bool store_concats : {true, false}) {
    GroupAxes axes(view, store_concats);
    if (auto reason = axes.run()) {
      verdict = {{}, std::move(*reason)};
    } else {
      verdict = Classification(view, axes).run();
    }
    if (verdict.domain || !axes.needs().stores_concat()) break;
  }
  return verdict;
}

}  // namespace segfuse::compiler
