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
  /// UsageError unless all that are given are (n, classes).
  FramePiece(const FrameScores<T>& scores, std::int64_t classes) : scores_(scores) {
    check("emission", scores.emission, classes);
    if (!scores.start.empty()) check("start", scores.start, classes);
    if (!scores.end.empty()) check("end", scores.end, classes);
  }
  std::int64_t frames() const { return scores_.emission.extent(0); }

  /// Puts frame t, which is frame `number` of the row, into row `to` of the buffers. DataError for
  /// NaN and +inf.
  void load(std::int64_t t, std::int64_t number, std::int64_t stride, RowBuffers& buffers,
            std::int64_t to) const {
    load_one("emission", scores_.emission, t, number, buffers.emission.data() + to * stride);
    load_one("start", scores_.start, t, number, buffers.start.data() + to * stride);
    load_one("end", scores_.end, t, number, buffers.end.data() + to * stride);
  }

 private:
  void check(const char* name, const View<const T, 2>& view, std::int64_t classes) const {
    if (view.empty() && frames() == 0) return;
    if (view.extent(0) != frames() || view.extent(1) != classes)
      throw UsageError(fmt::format("semicrf: {} has shape ({}, {}), expected ({}, {})", name,
                                   view.extent(0), view.extent(1), frames(), classes));
  }
  void load_one(const char* name, const View<const T, 2>& view, std::int64_t t, std::int64_t number,
                double* to) const {
    const std::int64_t classes = scores_.emission.extent(1);
    for (std::int64_t c = 0; c < classes; ++c) {
      to[c] = view.empty() ? 0.0 : static_cast<double>(view(t, c));
      if (!(to[c] < -kNegInf))
        throw DataError(
            fmt::format("semicrf: {} at time {}, class {} is {}; scores are finite or -inf", name,
                        number, c, to[c]));
    }
  }

  FrameScores<T> scores_;
};

}  // namespace segfuse::semicrf
