#include "compiler/segment/search.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "base/check.h"

namespace segfuse::compiler {

using ir::ExprId;
using ir::ValId;
using Node = Reachability::Node;

namespace {

constexpr std::size_t kMaxSiblings = 8;   // users of one value that are all tried with each other
constexpr std::size_t kMaxInHull = 8;     // groups that are merged in one step
constexpr std::size_t kLargePart = 2048;  // expressions: more than any kernel has
constexpr std::size_t kSmallPart = 32;

}  // namespace

MergeSearch::MergeSearch(ir::Fusion& fusion, const SegmentOptions& options)
    : fusion_(fusion), options_(options), context_(fusion, options.hints) {
  make_single_groups();
}

void MergeSearch::make_single_groups() {
  group_of_.assign(fusion_.storage().exprs.size(), kNone);
  for (const ExprId id : context_.order()) {
    if (!context_.in_group(id)) continue;
    const auto number = static_cast<Number>(groups_.size());
    group_of_[id.index] = number;
    by_node_.push_back(number);
    Candidate group;
    group.exprs = {id};
    group.boundary = context_.boundary(group.exprs);
    group.node = number;
    groups_.push_back(std::move(group));
  }
  std::vector<std::pair<Node, Node>> edges;
  for (Number g = 0; g < groups_.size(); ++g) {
    for (const ValId input : groups_[g].boundary.inputs)
      if (const ExprId definition = fusion_.val(input).definition; definition.valid())
        edges.emplace_back(group_of_[definition.index], g);
  }
  reach_ = Reachability(groups_.size(), edges);
  order_aliases();
  for (Candidate& group : groups_) {
    Verdict verdict = ask(group.exprs, group.boundary);
    SEGFUSE_CHECK(verdict.domain, "every expression alone is a kernel; '{}' is not: {}",
                  ir::info(fusion_.expr(group.exprs[0]).op).name, verdict.reason);
    group.domain = std::move(*verdict.domain);
  }
}

/// An output may overwrite the input that it aliases if the input's content, also as a view, is no
/// output, all other readers, also of views, can run before, and its own expression reads the input
/// only where it writes. The readers come before the
/// writer from now on.
void MergeSearch::order_aliases() {
  for (const ir::Alias& alias : fusion_.aliases()) {
    const ExprId writer = fusion_.val(alias.output).definition;
    if (!writer.valid() || group_of_[writer.index] == kNone) continue;
    const Number target = group_of_[writer.index];
    auto reads_it = [&](Number g) {
      const auto& inputs = groups_[g].boundary.inputs;
      return std::any_of(inputs.begin(), inputs.end(),
                         [&](ValId input) { return storage_root(fusion_, input) == alias.input; });
    };
    const auto& outputs = fusion_.outputs();
    const bool given_out = std::any_of(outputs.begin(), outputs.end(), [&](const ir::Output& o) {
      return storage_root(fusion_, o.val) == alias.input;
    });
    std::vector<Number> readers;
    bool possible = !given_out && !(runs_alone(fusion_.expr(writer).op) && reads_it(target));
    for (Number g = 0; g < groups_.size() && possible; ++g) {
      if (g == target || !reads_it(g)) continue;
      readers.push_back(g);
      possible = !reach_.reaches(target, g);
    }
    in_place_.push_back(alias);
    if (!possible || !ask(groups_[target].exprs, groups_[target].boundary).domain) {
      in_place_.pop_back();
      continue;
    }
    for (const Number g : readers) {
      const bool added = reach_.add_edge(g, target);
      SEGFUSE_CHECK(added, "a reader runs before the writer");
    }
  }
}

Verdict MergeSearch::ask(std::span<const ExprId> exprs, const Boundary& boundary) const {
  return options_.classifier({context_, exprs, boundary, in_place_});
}

std::vector<ExprId> MergeSearch::joined(std::span<const Number> groups) const {
  std::vector<ExprId> all;
  for (const Number g : groups)
    all.insert(all.end(), groups_[g].exprs.begin(), groups_[g].exprs.end());
  const auto earlier = [&](ExprId a, ExprId b) { return context_.before(a, b); };
  if (groups.size() == 2) {  // both are in order
    const auto middle = static_cast<std::ptrdiff_t>(groups_[groups[0]].exprs.size());
    std::inplace_merge(all.begin(), all.begin() + middle, all.end(), earlier);
  } else {
    std::sort(all.begin(), all.end(), earlier);
  }
  return all;
}

bool MergeSearch::try_merge(std::span<const Number> set, std::string& reason) {
  Candidate merged;
  merged.exprs = joined(set);
  merged.boundary = context_.boundary(merged.exprs);
  Verdict verdict = ask(merged.exprs, merged.boundary);
  if (!verdict.domain) {
    reason = std::move(verdict.reason);
    return false;
  }
  merged.domain = std::move(*verdict.domain);
  const auto number = static_cast<Number>(groups_.size());
  for (const Number g : set) {
    groups_[g].alive = false;
    reach_.merge(groups_[set[0]].node, groups_[g].node);
  }
  merged.node = reach_.find(groups_[set[0]].node);
  by_node_[merged.node] = number;
  for (const ExprId id : merged.exprs) group_of_[id.index] = number;
  groups_.push_back(std::move(merged));
  return true;
}

void MergeSearch::try_whole() {
  std::vector<Number> all(groups_.size());
  std::iota(all.begin(), all.end(), 0);
  std::string reason;
  if (all.size() > 1) (void)try_merge(all, reason);
}

/// The parts that are connected without library calls.
void MergeSearch::try_parts() {
  std::vector<Number> part(groups_.size());
  std::iota(part.begin(), part.end(), 0);
  auto find = [&](Number g) {
    while (part[g] != g) g = part[g] = part[part[g]];
    return g;
  };
  auto alone = [&](Number g) { return groups_[g].domain.kind == GroupKind::kLibrary; };
  for (Number g = 0; g < groups_.size(); ++g) {
    if (!groups_[g].alive || alone(g)) continue;
    for (const ValId input : groups_[g].boundary.inputs) {
      const ExprId definition = fusion_.val(input).definition;
      if (!definition.valid()) continue;
      const Number other = group_of_[definition.index];
      if (!alone(other)) part[std::max(find(g), find(other))] = std::min(find(g), find(other));
    }
  }
  std::map<Number, std::vector<Number>> parts;
  for (Number g = 0; g < part.size(); ++g)
    if (groups_[g].alive) parts[find(g)].push_back(g);
  for (const auto& [first, members] : parts) {
    if (members.size() < 2) continue;
    std::vector<Node> nodes;
    for (const Number g : members) nodes.push_back(groups_[g].node);
    std::string reason;
    if (reach_.may_merge(nodes) && try_merge(members, reason)) continue;
    if (members.size() > kLargePart) try_halves(members);
  }
}

/// What is too large for one kernel by far, by pieces of its order: pair by pair would take long.
void MergeSearch::try_halves(std::span<const Number> members) {
  if (members.size() <= kSmallPart) return;
  const std::size_t middle = members.size() / 2;
  for (const auto half : {members.first(middle), members.subspan(middle)}) {
    std::vector<Node> nodes;
    for (const Number g : half) nodes.push_back(groups_[g].node);
    std::string reason;
    if (!reach_.may_merge(nodes) || !try_merge(half, reason)) try_halves(half);
  }
}

/// Bytes that two groups move less as one.
std::int64_t MergeSearch::saved(const Candidate& a, const Candidate& b) const {
  std::int64_t total = 0;
  auto common = [&](const std::vector<ValId>& x, const std::vector<ValId>& y, auto visit) {
    for (std::size_t i = 0, j = 0; i < x.size() && j < y.size();) {
      if (x[i] == y[j]) {
        visit(x[i]);
        ++i;
        ++j;
      } else if (x[i] < y[j]) {
        ++i;
      } else {
        ++j;
      }
    }
  };
  common(a.boundary.inputs, b.boundary.inputs, [&](ValId v) { total += context_.bytes(v); });
  auto between = [&](ValId v) {
    total += context_.bytes(v);  // not read
    const auto& uses = fusion_.val(v).uses;
    const bool inside = std::all_of(uses.begin(), uses.end(), [&](ExprId user) {
      const Number g = group_of_[user.index];
      return g == kNone || &groups_[g] == &a || &groups_[g] == &b;
    });
    if (inside && !context_.is_output(v)) total += context_.bytes(v);  // not written
  };
  common(a.boundary.outputs, b.boundary.inputs, between);
  common(b.boundary.outputs, a.boundary.inputs, between);
  return total;
}

void MergeSearch::offer(Number a, Number b) {
  if (a == b || a == kNone || b == kNone) return;
  const Candidate& one = groups_[a];
  const Candidate& other = groups_[b];
  if (one.domain.kind == GroupKind::kLibrary || other.domain.kind == GroupKind::kLibrary) return;
  if (!tried_.insert(key(a, b)).second) return;
  queue_.push(
      {saved(one, other), one.exprs.size() + other.exprs.size(), std::min(a, b), std::max(a, b)});
}

std::int64_t MergeSearch::traffic(const Boundary& boundary) const {
  std::int64_t total = 0;
  for (const ValId val : boundary.inputs) total += context_.bytes(val);
  for (const ValId val : boundary.outputs) total += context_.bytes(val);
  return total;
}

/// A group whose results meet again in another one, with all that lies between.
void MergeSearch::offer_diamond(Number top, Number bottom) {
  if (groups_[top].domain.kind == GroupKind::kLibrary) return;
  if (groups_[bottom].domain.kind == GroupKind::kLibrary) return;
  if (tried_.contains(key(top, bottom))) return;
  const Node nodes[] = {groups_[top].node, groups_[bottom].node};
  const std::vector<Number> set = alive_groups_of(reach_.hull(nodes, kMaxInHull));
  if (set.empty()) return;
  const std::vector<ExprId> all = joined(set);
  std::int64_t saving = -traffic(context_.boundary(all));
  for (const Number g : set) saving += traffic(groups_[g].boundary);
  tried_.insert(key(top, bottom));
  queue_.push({saving, all.size(), std::min(top, bottom), std::max(top, bottom)});
}

void MergeSearch::offer_diamonds(Number group) {
  std::vector<Number> below;  // users of users, as often as there are ways
  for (const ValId output : groups_[group].boundary.outputs) {
    const std::vector<Number> users = users_of(output);
    if (users.size() < 2 || users.size() > kMaxSiblings) continue;
    for (const Number user : users) {
      if (user == group) continue;
      for (const ValId result : groups_[user].boundary.outputs) {
        const std::vector<Number> next = users_of(result);
        if (next.size() <= kMaxSiblings) below.insert(below.end(), next.begin(), next.end());
      }
    }
  }
  std::sort(below.begin(), below.end());
  for (std::size_t i = 1; i < below.size(); ++i)
    if (below[i] == below[i - 1] && below[i] != group) offer_diamond(group, below[i]);
}

/// The groups that read a value, in the order of their first such expression.
std::vector<MergeSearch::Number> MergeSearch::users_of(ValId val) const {
  std::vector<Number> users;
  std::vector<ExprId> uses = fusion_.val(val).uses;
  std::sort(uses.begin(), uses.end(), [&](ExprId x, ExprId y) { return context_.before(x, y); });
  std::set<Number> seen;
  for (const ExprId use : uses) {
    const Number g = group_of_[use.index];
    if (g != kNone && seen.insert(g).second) users.push_back(g);
  }
  return users;
}

void MergeSearch::offer_neighbours(Number group) {
  // Copies: offer() does not change groups, but clarity is cheap here.
  const Boundary boundary = groups_[group].boundary;
  for (const ValId input : boundary.inputs) {
    if (const ExprId definition = fusion_.val(input).definition; definition.valid())
      offer(group_of_[definition.index], group);
    const std::vector<Number> users = users_of(input);
    const auto me = std::find(users.begin(), users.end(), group) - users.begin();
    for (std::size_t i = 0; i < users.size(); ++i) {
      const auto distance = std::abs(static_cast<std::ptrdiff_t>(i) - me);
      if (users.size() <= kMaxSiblings || distance == 1) offer(users[i], group);
    }
  }
  for (const ValId output : boundary.outputs)
    for (const Number user : users_of(output)) offer(group, user);
  offer_diamonds(group);
}

std::vector<MergeSearch::Number> MergeSearch::alive_groups_of(std::span<const Node> nodes) const {
  std::vector<Number> numbers;
  for (const Node node : nodes) numbers.push_back(by_node_[reach_.find(node)]);
  return numbers;
}

void MergeSearch::consider(const Pair& pair) {
  if (!groups_[pair.first].alive || !groups_[pair.second].alive) return;
  const Node nodes[] = {groups_[pair.first].node, groups_[pair.second].node};
  std::vector<Number> set{pair.first, pair.second};
  std::string reason;
  if (!reach_.may_merge(nodes)) {
    const std::vector<Node> hull = reach_.hull(nodes, kMaxInHull);
    set = alive_groups_of(hull);
    const bool library = std::any_of(set.begin(), set.end(), [&](Number g) {
      return groups_[g].domain.kind == GroupKind::kLibrary;
    });
    if (set.empty() || library) reason = "a path leads out of the two and back";
  }
  if (reason.empty() && try_merge(set, reason)) {
    offer_neighbours(static_cast<Number>(groups_.size() - 1));
    return;
  }
  refused_[key(pair.first, pair.second)] = reason;
}

void MergeSearch::merge_pairs() {
  const auto count = static_cast<Number>(groups_.size());
  for (Number g = 0; g < count; ++g)
    if (groups_[g].alive) offer_neighbours(g);
  while (!queue_.empty()) {
    const Pair pair = queue_.top();
    queue_.pop();
    if (pair.saved > 0) consider(pair);
  }
}

std::vector<MergeSearch::Refusal> MergeSearch::refusals() const {
  std::vector<Refusal> all;
  for (const auto& [pair, reason] : refused_) {
    const auto first = static_cast<Number>(pair >> 32U);
    const auto second = static_cast<Number>(pair);
    if (groups_[first].alive && groups_[second].alive) all.push_back({first, second, reason});
  }
  return all;
}

}  // namespace segfuse::compiler
