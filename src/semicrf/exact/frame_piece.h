#pragma once
// Frames of a row that arrives in pieces.

#include <fmt/core.h>

#include "segfuse/error.h"
#include "segfuse/semicrf_tools.h"
#include "semicrf/model/problem.h"

namespace segfuse::semicrf {

template <class T>
class FramePiece {
 public:
  /// UsageError unless all that are given are (n, classes), DataError for NaN and +inf. `first` is
  /// the number of the first frame in the row.
  FramePiece(const FrameScores<T>& scores, std::int64_t classes, std::int64_t first)
      : scores_(scores) {
    check("emission", scores.emission, classes, first);
    if (!scores.start.empty()) check("start", scores.start, classes, first);
    if (!scores.end.empty()) check("end", scores.end, classes, first);
  }
  std::int64_t frames() const { return scores_.emission.extent(0); }

  /// Puts frame t into row `to` of the buffers.
  void load(std::int64_t t, std::int64_t stride, RowBuffers& buffers, std::int64_t to) const {
    load_one(scores_.emission, t, buffers.emission.data() + to * stride);
    load_one(scores_.start, t, buffers.start.data() + to * stride);
    load_one(scores_.end, t, buffers.end.data() + to * stride);
  }

 private:
  void check(const char* name, const View<const T, 2>& view, std::int64_t classes,
             std::int64_t first) const {
    if (view.empty() && frames() == 0) return;
    if (view.extent(0) != frames() || view.extent(1) != classes)
      throw UsageError(fmt::format("semicrf: {} has shape ({}, {}), expected ({}, {})", name,
                                   view.extent(0), view.extent(1), frames(), classes));
    for (std::int64_t t = 0; t < frames(); ++t)
      for (std::int64_t c = 0; c < classes; ++c)
        if (const auto score = static_cast<double>(view(t, c)); !(score < -kNegInf))
          throw DataError(
              fmt::format("semicrf: {} at time {}, class {} is {}; scores are finite or -inf", name,
                          first + t, c, score));
  }
  void load_one(const View<const T, 2>& view, std::int64_t t, double* to) const {
    const std::int64_t classes = scores_.emission.extent(1);
    for (std::int64_t c = 0; c < classes; ++c)
      to[c] = view.empty() ? 0.0 : static_cast<double>(view(t, c));
  }

  FrameScores<T> scores_;
};

}  // namespace segfuse::semicrf
