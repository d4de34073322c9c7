#pragma once
// What one kernel can hold: the question that the segmenter asks for each group it thinks of.

#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "compiler/segment/context.h"

namespace segfuse::compiler {

enum class GroupKind : std::uint8_t {
  kView,            ///< other shapes of what is in memory; no kernel
  kPointwise,       ///< one innermost order
  kTiledTranspose,  ///< two innermost orders
  kReduce,          ///< reductions over one set of axes, nothing stretched over them again
  kRowNorm,         ///< the same with something stretched again; the innermost axis is reduced
  kColNorm,         ///< the same; the innermost axis is not reduced
  kRowCol,          ///< rows reduced, and partial sums of columns beside them
  kLibrary,         ///< one expression that runs alone
};

std::string_view name_of(GroupKind kind);

/// What classify() finds out about a group; lowering and schedules are made from it.
struct IterationDomain {
  GroupKind kind = GroupKind::kPointwise;
  /// Sizes of its axes in the order of a value that has all of them.
  ir::Extents axes;
  std::vector<bool> reduced;         ///< by axis of the space
  std::vector<bool> column_reduced;  ///< the other reductions of a kRowCol
  int inner = -1;                    ///< the axis that is innermost in memory; -1 if there is none
  int live = 0;                      ///< most values over the whole space that are alive at once
  /// Movements of what is computed here that are done when it is stored.
  std::vector<ir::ExprId> stored;
  struct ValueAxes {
    ir::ValId val;
    std::vector<int> axes;  ///< by dimension: the axis of the space; -1 for one of size 1
    friend bool operator==(const ValueAxes&, const ValueAxes&) = default;
  };
  std::vector<ValueAxes>
      value_axes;  ///< of what is loaded, computed and stored, in topological order
};

/// A domain, or the reason why the group is no kernel.
struct [[nodiscard]] Verdict {
  std::optional<IterationDomain> domain;
  std::string reason;
};

/// A group that is only thought of. Expressions in topological order.
struct GroupView {
  const SegmentContext& context;
  std::span<const ir::ExprId> exprs;
  const Boundary& boundary;
  std::span<const ir::Alias> in_place;  ///< outputs of the Fusion that overwrite an input
};

using Classifier = std::function<Verdict(const GroupView&)>;

/// Axes of values are united when an expression runs along both; the classes are the iteration
/// space. Movement of what is computed here is done when it is stored, or by computing it again at
/// the position that is moved from (needs.cpp). Refused are: what runs alone in company; a value at
/// two places of the space at once; spaces that no value spans; what would be computed too often,
/// or a reduction's result moved along an axis that it kept; reductions over axes that no kind
/// holds; more values alive, with the states of reductions, than registers hold; more inputs and
/// outputs than a launch takes; what takes a compiler long; an input overwritten before it is read.
Verdict classify(const GroupView& view);

}  // namespace segfuse::compiler
