#pragma once
// A Fusion cut into groups that run one after the other.

#include <string>
#include <vector>

#include "compiler/segment/classify.h"

namespace segfuse::compiler {

/// A group's place in the run order.
using GroupId = ir::Id<struct GroupTag>;

/// A view of one group, made from the map: expressions in topological order, what it reads, what
/// it writes.
struct SegmentedGroup {
  GroupId id;
  std::vector<ir::ExprId> exprs;
  Boundary boundary;
};

/// `val` is written by one group and read by the other: one for each (from, to, val).
struct SegmentedEdge {
  GroupId from;
  GroupId to;
  ir::ValId val;
  friend auto operator<=>(const SegmentedEdge&, const SegmentedEdge&) = default;
};

/// Two groups that share a value and are not one, and why.
struct Rejection {
  GroupId first;
  GroupId second;
  std::string reason;
  friend auto operator<=>(const Rejection&, const Rejection&) = default;
};

/// The whole state of a segmentation is the map from expressions to groups; what a group reads and
/// writes, and who depends on whom, is derived from it by the Fusion's use lists:
///   inputs(S)  = { v used in S : def(v) not in S }
///   outputs(S) = { v defined in S : v is an output of the Fusion, or some use of v is outside S }
///   edges      = (G, H, v) for every v in outputs(G) ∩ inputs(H)
/// Free values (SegmentContext::is_free) are in nobody's inputs but those of a library call.
class SegmentedFusion {
 public:
  /// Groups are numbered in an order in which they can run. `group_of` by ExprId; invalid for free
  /// expressions that nobody needs in memory.
  SegmentedFusion(ir::Fusion fusion, const SizeHints& hints, std::vector<GroupId> group_of,
                  std::vector<IterationDomain> domains);

  const ir::Fusion& fusion() const noexcept { return fusion_; }
  std::size_t size() const noexcept { return domains_.size(); }
  GroupId group_of(ir::ExprId id) const { return group_of_.at(id.index); }
  const IterationDomain& domain(GroupId id) const { return domains_.at(id.index); }
  const SizeHints& hints() const noexcept { return hints_; }

  /// All groups in run order. O(size of the Fusion).
  std::vector<SegmentedGroup> groups() const;
  std::vector<SegmentedEdge> edges() const;  ///< ascending

  /// Outputs that their group writes over the input that they alias: all readers have run. Other
  /// aliases are copied at the end.
  std::vector<ir::Alias> in_place;
  std::vector<Rejection> rejections;  ///< ascending
  std::size_t copies = 0;             ///< expressions added so that a group computes them again

  /// InternalError unless every expression that has to be in a group is, domains are there for all,
  /// no value is read before it is written, and no input is overwritten before it is read.
  void verify() const;

 private:
  ir::Fusion fusion_;
  SizeHints hints_;
  std::vector<GroupId> group_of_;
  std::vector<IterationDomain> domains_;
};

}  // namespace segfuse::compiler
