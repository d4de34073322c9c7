#include "engine/exec/groups.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <queue>

namespace segfuse::engine {
namespace {

constexpr std::size_t kMaxExprs = 40;  // in one group: bounds the scratch that a block needs

/// A set of small numbers.
class BitSet {
 public:
  explicit BitSet(std::size_t size) : words_((size + 63) / 64, 0) {}
  void add(std::size_t i) { words_[i / 64] |= std::uint64_t{1} << (i % 64); }
  bool has(std::size_t i) const { return (words_[i / 64] >> (i % 64)) & 1; }
  /// Returns whether anything was added.
  bool merge(const BitSet& other) {
    std::uint64_t added = 0;
    for (std::size_t w = 0; w < words_.size(); ++w) {
      added |= other.words_[w] & ~words_[w];
      words_[w] |= other.words_[w];
    }
    return added != 0;
  }

 private:
  std::vector<std::uint64_t> words_;
};

/// Greedy grouping in topological order: an elementwise expression joins the groups that make its
/// operands when they have its shape and no path leaves the union and comes back.
class Grouper {
 public:
  Grouper(const ir::Fusion& fusion, bool fuse)
      : fusion_(fusion), order_(fusion.live_exprs()), fuse_(fuse) {
    const std::size_t n = order_.size();
    position_.assign(fusion.storage().exprs.size(), n);
    for (std::size_t i = 0; i < n; ++i) position_[order_[i].index] = i;
    owner_.resize(n);
    members_.resize(n);
    needs_.assign(n, BitSet(n));
    for (const ir::ExprId id : order_)
      shapes_.push_back(fusion.canonical(fusion.val(fusion.result(id)).shape));
  }

  std::vector<Group> run() {
    for (std::size_t i = 0; i < order_.size(); ++i) place(i);
    return ordered();
  }

 private:
  bool pointwise(std::size_t i) const {
    const ir::Op op = fusion_.expr(order_[i]).op;
    return ir::info(op).op_class == ir::OpClass::kElementwise || op == ir::Op::random_uniform;
  }

  /// Groups that define the operands of expression i, ascending, each once.
  std::vector<std::size_t> operand_groups(std::size_t i) const {
    std::vector<std::size_t> groups;
    for (const ir::ValId operand : fusion_.expr(order_[i]).operands) {
      const ir::ExprId definition = fusion_.val(operand).definition;
      if (definition.valid()) groups.push_back(owner_[position_[definition.index]]);
    }
    std::sort(groups.begin(), groups.end());
    groups.erase(std::unique(groups.begin(), groups.end()), groups.end());
    return groups;
  }

  void place(std::size_t i) {
    owner_[i] = i;  // a group is named by its first expression
    members_[i] = {i};
    for (const std::size_t group : operand_groups(i)) {
      needs_[i].add(group);
      needs_[i].merge(needs_[group]);
    }
    if (!fuse_ || !pointwise(i)) return;
    for (const std::size_t group : operand_groups(i)) {
      const std::size_t mine = owner_[i];
      if (group == mine || owner_[group] != group || !pointwise(group)) continue;
      if (members_[group].size() + members_[mine].size() > kMaxExprs) continue;
      if (shapes_[group] == shapes_[i] && mergeable(group, mine)) merge(group, mine);
    }
  }

  /// No third group may lie on a path between the two.
  bool mergeable(std::size_t a, std::size_t b) const {
    for (std::size_t g = 0; g < order_.size(); ++g) {
      if (g == a || g == b || members_[g].empty()) continue;
      if (needs_[b].has(g) && needs_[g].has(a)) return false;
      if (needs_[a].has(g) && needs_[g].has(b)) return false;
    }
    return true;
  }

  void merge(std::size_t a, std::size_t b) {
    const std::size_t into = std::min(a, b);
    const std::size_t from = std::max(a, b);
    for (const std::size_t member : members_[from]) owner_[member] = into;
    members_[into].insert(members_[into].end(), members_[from].begin(), members_[from].end());
    std::sort(members_[into].begin(), members_[into].end());
    members_[from].clear();
    needs_[into].merge(needs_[from]);
    for (std::size_t g = 0; g < order_.size(); ++g)
      if (!members_[g].empty() && g != into && (needs_[g].has(into) || needs_[g].has(from))) {
        needs_[g].add(into);
        needs_[g].merge(needs_[into]);
      }
  }

  std::vector<Group> ordered() const {
    const std::size_t n = order_.size();
    std::vector<std::vector<std::size_t>> users(n);
    std::vector<std::size_t> missing(n, 0);
    for (std::size_t g = 0; g < n; ++g) {
      std::vector<std::size_t> sources;
      for (const std::size_t member : members_[g])
        for (const std::size_t source : operand_groups(member))
          if (source != g) sources.push_back(source);
      std::sort(sources.begin(), sources.end());
      sources.erase(std::unique(sources.begin(), sources.end()), sources.end());
      missing[g] = sources.size();
      for (const std::size_t source : sources) users[source].push_back(g);
    }
    std::priority_queue<std::size_t, std::vector<std::size_t>, std::greater<>> ready;
    for (std::size_t g = 0; g < n; ++g)
      if (!members_[g].empty() && missing[g] == 0) ready.push(g);
    std::vector<Group> groups;
    while (!ready.empty()) {
      const std::size_t g = ready.top();
      ready.pop();
      Group group{pointwise(g), {}};
      for (const std::size_t member : members_[g]) group.exprs.push_back(order_[member]);
      groups.push_back(std::move(group));
      for (const std::size_t user : users[g])
        if (--missing[user] == 0) ready.push(user);
    }
    return groups;
  }

  const ir::Fusion& fusion_;
  std::vector<ir::ExprId> order_;
  bool fuse_;
  std::vector<ir::Extents> shapes_;                // by position: of the first result
  std::vector<std::size_t> position_;              // by ExprId
  std::vector<std::size_t> owner_;                 // by position: its group
  std::vector<std::vector<std::size_t>> members_;  // by group; empty when merged away
  std::vector<BitSet> needs_;                      // by group: groups it depends on
};

}  // namespace

std::vector<Group> make_groups(const ir::Fusion& fusion, bool fuse) {
  return Grouper(fusion, fuse).run();
}

}  // namespace segfuse::engine
