#pragma once
// Cuts a Fusion into groups that one kernel can hold each.

#include "compiler/segment/segmented_fusion.h"

namespace segfuse::compiler {

struct SegmentOptions {
  SizeHints hints;
  Classifier classifier = classify;
  /// Computes cheap chains again where that moves fewer bytes.
  bool recompute = true;
};

/// Groups for a Fusion without dead code (UsageError otherwise). The whole Fusion is tried first,
/// then each part between library calls, then single expressions are merged: of all pairs that
/// share a value the one that saves most bytes, if no path leaves and enters it again (a pair that
/// one does is tried together with what lies between) and the classifier has a domain. What the
/// classifier accepted is kept. Then cheap chains are computed again where that saves bytes, and
/// the groups are put in an order. The result depends on outputs and operands, not on ids or the
/// order of insertion.
SegmentedFusion segment(ir::Fusion fusion, const SegmentOptions& options = {});

}  // namespace segfuse::compiler
