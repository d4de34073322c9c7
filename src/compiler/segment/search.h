#pragma once
// The groups while they are merged.

#include <map>
#include <optional>
#include <queue>
#include <unordered_map>
#include <unordered_set>

#include "compiler/segment/reachability.h"
#include "compiler/segment/segmenter.h"

namespace segfuse::compiler {

/// A group in the search. A merge makes a new one; numbers are not used again.
struct Candidate {
  bool alive = true;
  std::vector<ir::ExprId> exprs;  ///< in the order of the context
  Boundary boundary;
  IterationDomain domain;
  Reachability::Node node = 0;
};

class MergeSearch {
 public:
  using Number = std::uint32_t;

  MergeSearch(ir::Fusion& fusion, const SegmentOptions& options);

  void try_whole();
  void try_parts();
  void try_halves(std::span<const Number> members);
  void merge_pairs();
  void recompute_cheap_chains();
  /// The last step: what a kernel would store only in another shape than that in which it is in
  /// memory anyway, or in several shapes, is a view.
  void separate_views();

  const SegmentContext& context() const { return context_; }
  const std::vector<Candidate>& groups() const { return groups_; }
  const std::vector<ir::Alias>& in_place() const { return in_place_; }
  Number group_of(ir::ExprId id) const { return group_of_[id.index]; }
  std::size_t copies() const { return copies_; }
  struct Refusal {
    Number first;
    Number second;
    std::string reason;
  };
  /// The refusals of pairs whose groups both still exist.
  std::vector<Refusal> refusals() const;

  static constexpr Number kNone = 0xFFFFFFFFU;

 private:
  struct Pair {
    std::int64_t saved;
    std::size_t size;
    Number first;
    Number second;
    friend bool operator<(const Pair& a, const Pair& b) {
      if (a.saved != b.saved) return a.saved < b.saved;
      if (a.size != b.size) return a.size > b.size;
      return std::pair(a.first, a.second) > std::pair(b.first, b.second);
    }
  };

  void make_single_groups();
  void order_aliases();
  [[nodiscard]] Verdict ask(std::span<const ir::ExprId> exprs, const Boundary& boundary) const;
  std::vector<ir::ExprId> joined(std::span<const Number> groups) const;
  /// Asks the classifier about these groups as one, and merges them if it has a domain.
  [[nodiscard]] bool try_merge(std::span<const Number> groups, std::string& reason);
  std::int64_t saved(const Candidate& a, const Candidate& b) const;
  void offer(Number a, Number b);
  void offer_neighbours(Number group);
  void offer_diamond(Number top, Number bottom);
  void offer_diamonds(Number group);
  std::int64_t traffic(const Boundary& boundary) const;
  std::vector<Number> users_of(ir::ValId val) const;
  void consider(const Pair& pair);
  std::vector<Number> alive_groups_of(std::span<const Reachability::Node> nodes) const;
  static std::uint64_t key(Number a, Number b) {
    return static_cast<std::uint64_t>(std::min(a, b)) << 32U | std::max(a, b);
  }

  struct Chain {
    std::vector<ir::ExprId> exprs;  ///< from the base to the value
    ir::ValId base;
  };
  std::optional<std::size_t> link(ir::ExprId id) const;
  Chain cheap_chain(ir::ValId val) const;
  void recompute(ir::ValId val);
  bool copy_into(Number group, ir::ValId val, const Chain& chain);
  std::vector<ir::ExprId> dying(ir::ValId val, const Chain& chain) const;
  void take_out(Number group, const std::vector<ir::ExprId>& exprs);
  std::vector<ir::ExprId> rest_of(Number group, const std::vector<ir::ExprId>& without) const;
  void settle(Number group);
  bool changes_shape_alone(ir::ExprId id) const;
  void separate_views(Number group);
  void separate_views(Number group, const std::vector<ir::ExprId>& views);
  bool is_made_in(Number group, ir::ValId val) const;
  bool is_overwritten(ir::ValId val) const;

  ir::Fusion& fusion_;
  const SegmentOptions& options_;
  SegmentContext context_;
  std::vector<Candidate> groups_;
  std::vector<Number> group_of_;  // by ExprId
  std::vector<Number> by_node_;   // by node of the reachability
  Reachability reach_{0, {}};
  std::vector<ir::Alias> in_place_;
  std::priority_queue<Pair> queue_;
  std::unordered_set<std::uint64_t> tried_;
  std::unordered_map<std::uint64_t, std::string> refused_;
  std::size_t copies_ = 0;
};

}  // namespace segfuse::compiler
