#pragma once
// What a segmentation does, in numbers and in words.

#include <string>

#include "compiler/segment/segmented_fusion.h"

namespace segfuse::compiler {

struct SegmentReport {
  struct Group {
    GroupKind kind;
    std::size_t exprs;
    std::int64_t read;
    std::int64_t written;
  };
  std::vector<Group> groups;  ///< in run order
  std::int64_t moved = 0;     ///< bytes that all groups read and write; views move none
  /// Every input that is needed read once, every output written once.
  std::int64_t lower_bound = 0;
  std::int64_t peak = 0;    ///< most bytes alive between groups, inputs not counted
  std::size_t kernels = 0;  ///< groups that are neither views nor library calls
};

SegmentReport report(const SegmentedFusion& segmented);

/// Groups with what they read and write, bytes, and the merges that were refused with reasons.
std::string describe(const SegmentedFusion& segmented);

}  // namespace segfuse::compiler
