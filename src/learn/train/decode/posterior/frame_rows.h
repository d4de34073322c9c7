#pragma once
// The posterior of each frame of a recording that is not held.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <span>

#include "learn/train/decode/posterior/row_store.h"

namespace segfuse::learn {

/// Takes of frame t P(t has the label) for each label, and P(a segment starts at t).
using FrameVisitor = semicrf::BlockPosterior::FrameVisitor;

class FrameRows {
 public:
  /// `backwards`: frames come from the last to the first; `boundary`: P(a segment starts) is known.
  /// In a file in `scratch`, or held where that is empty.
  FrameRows(std::int64_t classes, bool boundary, bool backwards,
            const std::filesystem::path& scratch)
      : boundary_(boundary), backwards_(backwards), store_(classes + 1, scratch) {}
  bool has_boundary() const { return boundary_; }
  void add(std::span<const double> label, double boundary);
  /// Calls visit(t, label, boundary) from the first frame to the last.
  void for_rows(const std::function<void(std::int64_t, std::span<const float>, float)>& visit);

 private:
  void flush();

  bool boundary_;
  bool backwards_;
  RowStore store_;
  std::int64_t frames_ = 0;
  std::vector<float> waiting_;
};

}  // namespace segfuse::learn
