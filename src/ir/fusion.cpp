#include "ir/fusion.h"

#include <fmt/core.h>

#include <algorithm>
#include <bit>
#include <functional>
#include <limits>
#include <queue>

#include "base/check.h"
#include "ir/rules/infer.h"

namespace segfuse::ir {
namespace {

void insert_sorted(std::vector<ExprId>& list, ExprId id) {
  const auto place = std::lower_bound(list.begin(), list.end(), id);
  if (place == list.end() || *place != id) list.insert(place, id);
}

}  // namespace

Fusion& Fusion::operator=(Fusion&& other) noexcept {
  if (this != &other) {
    name_ = std::move(other.name_);
    ir_ = std::exchange(other.ir_, {});
  }
  return *this;
}

void Fusion::swap(Fusion& other) noexcept {
  if (this == &other) return;
  std::swap(name_, other.name_);
  std::swap(ir_, other.ir_);
}

// --- building
// -----------------------------------------------------------------------

ValId Fusion::add_input(std::string name, DType dtype, Extents shape) {
  for (const Input& input : ir_.inputs)
    if (input.name == name)
      throw UsageError(fmt::format("the Fusion '{}' already has an input named '{}'", name_, name));
  for (const Extent& extent : canonical(shape))
    if (extent.is_constant() && extent.constant() < 0)
      throw UsageError(fmt::format("input '{}' has the shape {}; sizes must not be negative", name,
                                   to_string(shape)));
  const ValId id{static_cast<std::uint32_t>(ir_.vals.size())};
  ir_.vals.push_back({Val{dtype, std::move(shape), {}, 0, {}}});
  ir_.inputs.push_back({id, std::move(name)});
  return id;
}

ExprId Fusion::add_expr(Op op, std::vector<ValId> operands, Attrs attrs) {
  for (const ValId operand : operands) (void)val(operand);
  SizeState before = size_state();
  std::vector<ValueType> types;
  try {
    types = infer(*this, op, operands, attrs);
  } catch (...) {
    restore(std::move(before));
    throw;
  }
  const ExprId id{static_cast<std::uint32_t>(ir_.exprs.size())};
  Expr e{op, std::move(operands), {}, std::move(attrs)};
  for (std::uint32_t i = 0; i < types.size(); ++i) {
    e.results.push_back(ValId{static_cast<std::uint32_t>(ir_.vals.size())});
    ir_.vals.push_back({Val{types[i].dtype, types[i].shape, id, i, {}}});
  }
  for (const ValId operand : e.operands) insert_sorted(ir_.vals[operand.index].item.uses, id);
  ir_.exprs.push_back({std::move(e)});
  return id;
}

ValId Fusion::constant(double value, DType dtype) {
  if (value != value) value = std::numeric_limits<double>::quiet_NaN();  // one NaN
  const auto key = std::make_pair(dtype, std::bit_cast<std::uint64_t>(value));
  const auto found = ir_.constants.find(key);
  if (found != ir_.constants.end()) return found->second;
  const ValId id = result(add_expr(Op::constant, {}, {value, dtype}));
  ir_.constants.emplace(key, id);
  return id;
}

void Fusion::add_output(ValId id, std::string name) {
  ++mutable_val(id).outputs;
  ir_.outputs.push_back({id, std::move(name)});
}

void Fusion::add_alias(ValId output, ValId input) {
  if (!is_output(output))
    throw UsageError(
        fmt::format("the value aliased onto an input must be an output of the Fusion '{}'", name_));
  if (!is_input(input))
    throw UsageError(
        fmt::format("an output of the Fusion '{}' can only be aliased onto an input", name_));
  const Val& from = val(output);
  const Val& to = val(input);
  if (from.dtype != to.dtype || canonical(from.shape) != canonical(to.shape))
    throw UsageError(fmt::format(
        "an output of type {}{} cannot be aliased onto an input of type {}{}", name_of(from.dtype),
        to_string(from.shape), name_of(to.dtype), to_string(to.shape)));
  for (const Alias& alias : ir_.aliases)
    if (alias.input == input)
      throw UsageError(fmt::format("an input of the Fusion '{}' is aliased twice", name_));
  ir_.aliases.push_back({output, input});
}

// --- reading
// -----------------------------------------------------------------------

bool Fusion::contains(ValId id) const noexcept {
  return id.index < ir_.vals.size() && ir_.vals[id.index].alive;
}

bool Fusion::contains(ExprId id) const noexcept {
  return id.index < ir_.exprs.size() && ir_.exprs[id.index].alive;
}

const Val& Fusion::val(ValId id) const {
  if (!contains(id))
    throw UsageError(fmt::format("value {} is not in the Fusion '{}' (erased, or of another one)",
                                 id.index, name_));
  return ir_.vals[id.index].item;
}

const Expr& Fusion::expr(ExprId id) const {
  if (!contains(id))
    throw UsageError(fmt::format(
        "expression {} is not in the Fusion '{}' (erased, or of another one)", id.index, name_));
  return ir_.exprs[id.index].item;
}

Val& Fusion::mutable_val(ValId id) { return const_cast<Val&>(std::as_const(*this).val(id)); }
Expr& Fusion::mutable_expr(ExprId id) { return const_cast<Expr&>(std::as_const(*this).expr(id)); }

bool Fusion::is_input(ValId id) const { return contains(id) && !val(id).definition.valid(); }

bool Fusion::is_output(ValId id) const { return contains(id) && val(id).outputs > 0; }

std::vector<ValId> Fusion::vals() const {
  std::vector<ValId> all;
  for (std::uint32_t i = 0; i < ir_.vals.size(); ++i)
    if (ir_.vals[i].alive) all.push_back(ValId{i});
  return all;
}

std::vector<ExprId> Fusion::exprs() const {
  std::vector<ExprId> all;
  for (std::uint32_t i = 0; i < ir_.exprs.size(); ++i)
    if (ir_.exprs[i].alive) all.push_back(ExprId{i});
  return all;
}

std::vector<ExprId> Fusion::sort(const std::vector<bool>& wanted) const {
  std::vector<std::uint32_t> missing(ir_.exprs.size(), 0);
  std::priority_queue<ExprId, std::vector<ExprId>, std::greater<>> ready;
  for (std::uint32_t i = 0; i < wanted.size(); ++i) {
    if (!wanted[i]) continue;
    std::vector<ExprId> needs;
    for (const ValId operand : ir_.exprs[i].item.operands)
      if (const ExprId d = val(operand).definition; d.valid() && wanted[d.index])
        insert_sorted(needs, d);
    missing[i] = static_cast<std::uint32_t>(needs.size());
    if (needs.empty()) ready.push(ExprId{i});
  }
  std::vector<ExprId> order;
  while (!ready.empty()) {
    const ExprId id = ready.top();
    ready.pop();
    order.push_back(id);
    std::vector<ExprId> users;
    for (const ValId r : expr(id).results)
      for (const ExprId user : val(r).uses) insert_sorted(users, user);
    for (const ExprId user : users)
      if (wanted[user.index] && --missing[user.index] == 0) ready.push(user);
  }
  return order;
}

std::vector<ExprId> Fusion::live_exprs() const {
  std::vector<bool> wanted(ir_.exprs.size(), false);
  std::vector<ExprId> stack;
  auto visit = [&](ValId id) {
    const ExprId d = val(id).definition;
    if (!d.valid() || wanted[d.index]) return;
    wanted[d.index] = true;
    stack.push_back(d);
  };
  for (const Output& output : ir_.outputs) visit(output.val);
  while (!stack.empty()) {
    const ExprId id = stack.back();
    stack.pop_back();
    for (const ValId operand : expr(id).operands) visit(operand);
  }
  return sort(wanted);
}

std::vector<ExprId> Fusion::sorted_exprs() const {
  std::vector<bool> wanted(ir_.exprs.size(), false);
  for (const ExprId id : exprs()) wanted[id.index] = true;
  return sort(wanted);
}

bool Fusion::depends_on(ValId id, ValId ancestor) const {
  std::vector<bool> seen(ir_.vals.size(), false);
  std::vector<ValId> stack{id};
  while (!stack.empty()) {
    const ValId next = stack.back();
    stack.pop_back();
    if (next == ancestor) return true;
    if (seen[next.index]) continue;
    seen[next.index] = true;
    if (const ExprId d = val(next).definition; d.valid())
      stack.insert(stack.end(), expr(d).operands.begin(), expr(d).operands.end());
  }
  return false;
}

// --- editing
// -----------------------------------------------------------------------

void Fusion::drop_use(ValId id, ExprId user) {
  std::vector<ExprId>& uses = ir_.vals[id.index].item.uses;
  const auto place = std::lower_bound(uses.begin(), uses.end(), user);
  if (place != uses.end() && *place == user) uses.erase(place);
}

void Fusion::erase(ExprId id) {
  const Expr& e = expr(id);
  for (const ValId r : e.results) {
    if (is_output(r))
      throw UsageError(
          fmt::format("the result of '{}' is an output of the Fusion '{}' and cannot be erased",
                      info(e.op).name, name_));
    if (!val(r).uses.empty())
      throw UsageError(
          fmt::format("the result of '{}' still has {} uses; erase or replace them first",
                      info(e.op).name, val(r).uses.size()));
  }
  for (const ValId operand : e.operands) drop_use(operand, id);
  for (const ValId r : e.results) ir_.vals[r.index].alive = false;
  if (e.op == Op::constant)
    std::erase_if(ir_.constants, [&](const auto& entry) { return entry.second == e.results[0]; });
  ir_.exprs[id.index].alive = false;
}

std::vector<ExprId> Fusion::erase_with_users(ValId id) {
  const ExprId root = val(id).definition;
  if (!root.valid())
    throw UsageError(
        fmt::format("an input of the Fusion '{}' cannot be erased; use remove_input", name_));
  std::vector<bool> doomed(ir_.exprs.size(), false);
  std::vector<ExprId> stack{root};
  doomed[root.index] = true;
  while (!stack.empty()) {
    const ExprId next = stack.back();
    stack.pop_back();
    for (const ValId r : expr(next).results) {
      if (is_output(r))
        throw UsageError(fmt::format(
            "erasing this value would remove an output of the Fusion '{}' (made by '{}'); remove "
            "the output first",
            name_, info(expr(next).op).name));
      for (const ExprId user : val(r).uses)
        if (!doomed[user.index]) {
          doomed[user.index] = true;
          stack.push_back(user);
        }
    }
  }
  std::vector<ExprId> order = sort(doomed);
  std::vector<ExprId> erased(order.rbegin(), order.rend());
  for (const ExprId victim : erased) erase(victim);
  return erased;
}

void Fusion::need_same_type(ValId id, ValId with) const {
  const Val& old = val(id);
  const Val& replacement = val(with);
  if (old.dtype != replacement.dtype || canonical(old.shape) != canonical(replacement.shape))
    throw UsageError(fmt::format("a value of type {}{} cannot be replaced by one of type {}{}",
                                 name_of(old.dtype), to_string(old.shape),
                                 name_of(replacement.dtype), to_string(replacement.shape)));
}

void Fusion::replace_uses(ValId id, ValId with) {
  need_same_type(id, with);
  if (id != with && depends_on(with, id))
    throw UsageError("a value cannot be replaced by one that depends on it");
  redirect_uses(id, with);
}

void Fusion::redirect_uses(ValId id, ValId with) {
  need_same_type(id, with);
  if (id == with) return;
  for (const ExprId user : std::exchange(mutable_val(id).uses, {})) {
    std::vector<ValId>& operands = mutable_expr(user).operands;
    std::replace(operands.begin(), operands.end(), id, with);
    insert_sorted(mutable_val(with).uses, user);
  }
  if (val(id).outputs == 0) return;
  for (Output& output : ir_.outputs)
    if (output.val == id) output.val = with;
  for (Alias& alias : ir_.aliases)
    if (alias.output == id) alias.output = with;
  mutable_val(with).outputs += std::exchange(mutable_val(id).outputs, 0);
}

void Fusion::replace_operand(ExprId user, ValId id, ValId with) {
  need_same_type(id, with);
  (void)expr(user);
  if (id == with) return;
  std::vector<ValId>& operands = mutable_expr(user).operands;
  if (std::find(operands.begin(), operands.end(), id) == operands.end())
    throw UsageError(fmt::format("'{}' (expression {}) does not use value {}",
                                 info(expr(user).op).name, user.index, id.index));
  std::replace(operands.begin(), operands.end(), id, with);
  drop_use(id, user);
  insert_sorted(mutable_val(with).uses, user);
}

void Fusion::remove_alias(ValId input) {
  std::erase_if(ir_.aliases, [&](const Alias& alias) { return alias.input == input; });
}

void Fusion::remove_output(std::size_t position) {
  if (position >= ir_.outputs.size())
    throw UsageError(fmt::format("the Fusion '{}' has {} outputs; found the number {}", name_,
                                 ir_.outputs.size(), position));
  const ValId id = ir_.outputs[position].val;
  --mutable_val(id).outputs;
  ir_.outputs.erase(ir_.outputs.begin() + static_cast<std::ptrdiff_t>(position));
  if (!is_output(id)) std::erase_if(ir_.aliases, [&](const Alias& a) { return a.output == id; });
}

void Fusion::remove_input(ValId id) {
  if (!is_input(id))
    throw UsageError(fmt::format("value {} is not an input of the Fusion '{}'", id.index, name_));
  if (!val(id).uses.empty() || is_output(id))
    throw UsageError(
        fmt::format("an input of the Fusion '{}' that is still used cannot be removed", name_));
  std::erase_if(ir_.inputs, [&](const Input& input) { return input.val == id; });
  std::erase_if(ir_.aliases, [&](const Alias& alias) { return alias.input == id; });
  ir_.vals[id.index].alive = false;
}

Renumbering Fusion::compact() {
  Renumbering map{std::vector<ValId>(ir_.vals.size()), std::vector<ExprId>(ir_.exprs.size())};
  std::uint32_t next = 0;
  for (const ValId id : vals()) map.vals[id.index] = ValId{next++};
  next = 0;
  for (const ExprId id : exprs()) map.exprs[id.index] = ExprId{next++};
  auto move_val = [&](ValId& id) { id = map.vals[id.index]; };
  auto move_expr = [&](ExprId& id) { id = map.exprs[id.index]; };

  std::erase_if(ir_.vals, [](const auto& slot) { return !slot.alive; });
  std::erase_if(ir_.exprs, [](const auto& slot) { return !slot.alive; });
  for (auto& slot : ir_.vals) {
    if (slot.item.definition.valid()) move_expr(slot.item.definition);
    for (ExprId& use : slot.item.uses) move_expr(use);
  }
  for (auto& slot : ir_.exprs) {
    for (ValId& operand : slot.item.operands) move_val(operand);
    for (ValId& r : slot.item.results) move_val(r);
  }
  for (Input& input : ir_.inputs) move_val(input.val);
  for (Output& output : ir_.outputs) move_val(output.val);
  for (Alias& alias : ir_.aliases) {
    move_val(alias.output);
    move_val(alias.input);
  }
  for (auto& [key, id] : ir_.constants) move_val(id);
  return map;
}

const std::any* Fusion::data(const std::string& key) const {
  const auto found = ir_.data.find(key);
  return found == ir_.data.end() ? nullptr : &found->second;
}

std::size_t attr_position(Op op, std::string_view name) {
  const auto& specs = info(op).attrs;
  for (std::size_t i = 0; i < specs.size(); ++i)
    if (specs[i].name == name) return i;
  throw InternalError(fmt::format("the operation '{}' has no attribute '{}'", info(op).name, name));
}

}  // namespace segfuse::ir
