// Cheap chains that are computed again where they are needed, so that a smaller value, or one that
// is read anyway, crosses between groups.

#include <algorithm>

#include "base/check.h"
#include "compiler/op_facts.h"
#include "compiler/segment/search.h"

namespace segfuse::compiler {

using ir::Expr;
using ir::ExprId;
using ir::ValId;

namespace {

constexpr std::size_t kLongestChain = 4;

bool is_cheap(const Expr& e) {
  if (e.op == ir::Op::broadcast || e.op == ir::Op::squeeze || e.op == ir::Op::reshape) return true;
  return ir::info(e.op).op_class == ir::OpClass::kElementwise && costs_less_than_memory(e.op);
}

bool in(const std::vector<ValId>& sorted, ValId val) {
  return std::binary_search(sorted.begin(), sorted.end(), val);
}

}  // namespace

/// The operand that a cheap expression reads, by position, if it reads one only, so that a chain
/// reads no more than its result would be. Others are free.
std::optional<std::size_t> MergeSearch::link(ExprId id) const {
  const Expr& e = fusion_.expr(id);
  if (!is_cheap(e)) return {};
  std::optional<std::size_t> found;
  for (std::size_t i = 0; i < e.operands.size(); ++i) {
    if (context_.is_free(e.operands[i])) continue;
    if (found) return {};
    found = i;
  }
  return found;
}

/// From the nearest value that is in memory anyway. Empty if there is none near.
MergeSearch::Chain MergeSearch::cheap_chain(ValId val) const {
  Chain chain;
  for (ValId at = val; chain.exprs.size() < kLongestChain;) {
    const ExprId id = fusion_.val(at).definition;
    const auto from = id.valid() && !context_.is_free(id) ? link(id) : std::nullopt;
    if (!from) return {};
    chain.exprs.insert(chain.exprs.begin(), id);
    at = fusion_.expr(id).operands[*from];
    const ExprId below = fusion_.val(at).definition;
    const bool in_memory =
        !below.valid() || in(groups_[group_of_[below.index]].boundary.outputs, at);
    if (!in_memory) continue;
    chain.base = at;
    return chain;
  }
  return {};
}

/// Adds a copy of the chain to the group and lets it read that. False, and nothing is changed, if
/// it is no kernel with them.
bool MergeSearch::copy_into(Number group, ValId val, const Chain& chain) {
  std::vector<ExprId> users;
  for (const ExprId user : fusion_.val(val).uses)
    if (group_of_[user.index] == group) users.push_back(user);
  ValId made = chain.base;
  std::vector<ExprId> copies;
  for (const ExprId id : chain.exprs) {
    const Expr e = fusion_.expr(id);
    std::vector<ValId> operands = e.operands;
    operands[*link(id)] = made;
    copies.push_back(fusion_.add_expr(e.op, operands, e.attrs));
    context_.add_copy(copies.back(), id);
    made = fusion_.result(copies.back());
  }
  for (const ExprId user : users) fusion_.replace_operand(user, val, made);
  group_of_.resize(fusion_.storage().exprs.size(), kNone);
  std::vector<ExprId> all = groups_[group].exprs;
  all.insert(all.end(), copies.begin(), copies.end());
  std::sort(all.begin(), all.end(), [&](ExprId a, ExprId b) { return context_.before(a, b); });
  Boundary boundary = context_.boundary(all);
  Verdict verdict = ask(all, boundary);
  if (verdict.domain) {
    for (const ExprId id : copies) group_of_[id.index] = group;
    groups_[group].exprs = std::move(all);
    groups_[group].boundary = std::move(boundary);
    groups_[group].domain = std::move(*verdict.domain);
    copies_ += copies.size();
    return true;
  }
  for (const ExprId user : users) fusion_.replace_operand(user, made, val);
  for (auto id = copies.rbegin(); id != copies.rend(); ++id) fusion_.erase(*id);
  return false;
}

/// The end of the chain that nobody needs when all other groups have copies; last first.
std::vector<ExprId> MergeSearch::dying(ValId val, const Chain& chain) const {
  std::vector<ExprId> all;
  const Number home = group_of_[chain.exprs.back().index];
  for (auto id = chain.exprs.rbegin(); id != chain.exprs.rend(); ++id) {
    const ValId result = fusion_.result(*id);
    const auto& uses = fusion_.val(result).uses;
    const bool needed = std::any_of(uses.begin(), uses.end(), [&](ExprId user) {
      const bool goes = !all.empty() && user == all.back();
      return !goes && (result != val || group_of_[user.index] == home);
    });
    if (needed || context_.is_output(result) || group_of_[id->index] != home) break;
    all.push_back(*id);
  }
  return all;
}

std::vector<ExprId> MergeSearch::rest_of(Number group, const std::vector<ExprId>& without) const {
  std::vector<ExprId> rest = groups_[group].exprs;
  std::erase_if(rest, [&](ExprId id) {
    return std::find(without.begin(), without.end(), id) != without.end();
  });
  return rest;
}

/// Boundary and domain of a group whose surroundings have changed.
void MergeSearch::settle(Number group) {
  Candidate& g = groups_[group];
  g.boundary = context_.boundary(g.exprs);
  if (g.domain.kind == GroupKind::kLibrary) return;
  Verdict verdict = ask(g.exprs, g.boundary);
  SEGFUSE_CHECK(verdict.domain, "a group with fewer outputs is a kernel: {}", verdict.reason);
  g.domain = std::move(*verdict.domain);
}

void MergeSearch::take_out(Number group, const std::vector<ExprId>& exprs) {
  groups_[group].exprs = rest_of(group, exprs);
  for (const ExprId id : exprs) fusion_.erase(id);
  if (groups_[group].exprs.empty()) {
    groups_[group].alive = false;
  } else {
    settle(group);
  }
}

void MergeSearch::recompute(ValId val) {
  const Chain chain = cheap_chain(val);
  if (chain.exprs.empty()) return;
  if (is_overwritten(chain.base)) return;  // by then, perhaps
  const Number home = group_of_[chain.exprs.back().index];
  std::vector<Number> readers;
  bool all = !context_.is_output(val);
  for (const Number g : users_of(val)) {
    if (g == home) continue;
    if (groups_[g].domain.kind == GroupKind::kLibrary) {
      all = false;
    } else {
      readers.push_back(g);
    }
  }
  std::int64_t gain = all ? context_.bytes(val) : 0;
  for (const Number g : readers) {
    gain += context_.bytes(val);
    if (!in(groups_[g].boundary.inputs, chain.base)) gain -= context_.bytes(chain.base);
  }
  if (gain <= 0) return;
  const std::vector<ExprId> gone = all ? dying(val, chain) : std::vector<ExprId>{};
  if (const std::vector<ExprId> rest = rest_of(home, gone); !rest.empty())
    if (!ask(rest, context_.boundary(rest)).domain) return;
  bool everywhere = all;
  for (const Number g : readers) everywhere = copy_into(g, val, chain) && everywhere;
  if (everywhere) {
    take_out(home, gone);
  } else {
    groups_[home].boundary = context_.boundary(groups_[home].exprs);
  }
  if (const ExprId base = fusion_.val(chain.base).definition;
      base.valid() && group_of_[base.index] != home)
    settle(group_of_[base.index]);
}

void MergeSearch::recompute_cheap_chains() {
  std::vector<ValId> crossing;
  for (const ExprId id : context_.order()) {
    const Number g = group_of_[id.index];
    if (g == kNone || groups_[g].domain.kind == GroupKind::kLibrary || !link(id)) continue;
    const ValId val = fusion_.result(id);
    if (in(groups_[g].boundary.outputs, val)) crossing.push_back(val);
  }
  for (const ValId val : crossing)
    if (fusion_.contains(val)) recompute(val);
  context_.grow();
}

/// Its result has the operand's elements in their order.
bool MergeSearch::changes_shape_alone(ExprId id) const {
  const ir::Expr& e = fusion_.expr(id);
  if (e.op == ir::Op::reshape || e.op == ir::Op::squeeze) return true;
  return e.op == ir::Op::broadcast &&
         context_.elements(e.operands[0]) == context_.elements(e.results[0]);
}

void MergeSearch::separate_views(Number group) {
  std::map<ValId, std::vector<ExprId>> shapes;  // by value
  for (const ExprId id : groups_[group].exprs) {
    if (!changes_shape_alone(id) || context_.is_free(id)) continue;
    const ir::Expr& e = fusion_.expr(id);
    const ValId result = e.results[0];
    if (!in(groups_[group].boundary.outputs, result) || context_.is_output(result)) continue;
    const auto& uses = fusion_.val(result).uses;
    const bool read_here = std::any_of(uses.begin(), uses.end(),
                                       [&](ExprId use) { return group_of_[use.index] == group; });
    const bool made_here = is_made_in(group, e.operands[0]);
    if (!made_here && is_overwritten(e.operands[0])) continue;
    if (!made_here || !read_here) shapes[e.operands[0]].push_back(id);
  }
  for (const auto& [val, views] : shapes) {
    const bool stored = !is_made_in(group, val) || in(groups_[group].boundary.outputs, val);
    if (stored || views.size() > 1) separate_views(group, views);
  }
}

bool MergeSearch::is_made_in(Number group, ValId val) const {
  const ExprId definition = fusion_.val(val).definition;
  return definition.valid() && group_of_[definition.index] == group;
}

/// By an output that takes its memory.
bool MergeSearch::is_overwritten(ValId val) const {
  const ValId root = storage_root(fusion_, val);
  return std::any_of(in_place_.begin(), in_place_.end(),
                     [&](const ir::Alias& alias) { return alias.input == root; });
}

void MergeSearch::separate_views(Number group, const std::vector<ExprId>& views) {
  Candidate rest;
  rest.exprs = rest_of(group, views);
  if (rest.exprs.empty()) return;
  rest.boundary = context_.boundary(rest.exprs);
  Verdict verdict = ask(rest.exprs, rest.boundary);
  if (!verdict.domain) return;
  std::vector<Candidate> separate;
  for (const ExprId id : views) {
    Candidate view;
    view.exprs = {id};
    view.boundary = context_.boundary(view.exprs);
    Verdict alone = ask(view.exprs, view.boundary);
    if (!alone.domain || alone.domain->kind != GroupKind::kView) return;
    view.domain = std::move(*alone.domain);
    separate.push_back(std::move(view));
  }
  groups_[group].exprs = std::move(rest.exprs);
  groups_[group].boundary = std::move(rest.boundary);
  groups_[group].domain = std::move(*verdict.domain);
  for (Candidate& view : separate) {
    group_of_[view.exprs[0].index] = static_cast<Number>(groups_.size());
    groups_.push_back(std::move(view));
  }
}

void MergeSearch::separate_views() {
  for (Number g = 0, count = static_cast<Number>(groups_.size()); g < count; ++g) {
    const GroupKind kind = groups_[g].domain.kind;
    if (groups_[g].alive && kind != GroupKind::kLibrary && kind != GroupKind::kView)
      separate_views(g);
  }
}

}  // namespace segfuse::compiler
