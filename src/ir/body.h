#pragma once
// Fusions inside expressions: what their sizes are in the Fusion around them, and how they are
// written out into it.

#include <map>
#include <span>
#include <vector>

#include "ir/fusion.h"

namespace segfuse::ir {

/// The sizes of a body in those of the Fusion around it. A symbol of the body is the size of the
/// first axis of an input in which it stands alone.
class BodySizes {
 public:
  /// `shapes`: what the inputs of the body get, in order, over sizes of `around`. UsageError for a
  /// wrong number of axes.
  BodySizes(Fusion& around, const Fusion& body, std::span<const Extents> shapes);

  /// UsageError if it holds a symbol that stands alone in no input.
  Extent of(const Extent& size);
  Extents of(const Extents& sizes);

 private:
  Fusion& around_;
  const Fusion& body_;
  std::map<SymbolId, Extent> known_;
};

/// Sizes of one Fusion over symbols of the same names in another.
Extents same_names(Fusion& into, const Fusion& from, const Extents& sizes);

/// Adds the expressions of `body` that its outputs need to `into`, with `inputs` for its inputs,
/// and gives its outputs. The inputs have the types of the body's; sizes that must agree are
/// united (UsageError if they cannot).
std::vector<ValId> inline_body(Fusion& into, const Fusion& body, std::span<const ValId> inputs);

}  // namespace segfuse::ir
