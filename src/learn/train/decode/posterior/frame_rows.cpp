#include "learn/train/decode/posterior/frame_rows.h"

#include <algorithm>

namespace segfuse::learn {
namespace {

constexpr std::int64_t kRows = 4096;  // that are written or read at a time

}  // namespace

void FrameRows::add(std::span<const double> label, double boundary) {
  for (const double p : label) waiting_.push_back(static_cast<float>(p));
  waiting_.push_back(static_cast<float>(boundary));
  if (++frames_ % kRows == 0) flush();
}

void FrameRows::flush() {
  store_.append(waiting_);
  waiting_.clear();
}

void FrameRows::for_rows(
    const std::function<void(std::int64_t, std::span<const float>, float)>& visit) {
  flush();
  const std::int64_t width = store_.width();
  const auto classes = static_cast<std::size_t>(width - 1);
  for (std::int64_t t = 0; t < frames_; t += kRows) {
    const std::int64_t n = std::min(kRows, frames_ - t);
    const float* rows = store_.read(backwards_ ? frames_ - t - n : t, n);
    for (std::int64_t i = 0; i < n; ++i) {
      const float* row = rows + (backwards_ ? n - 1 - i : i) * width;
      visit(t + i, {row, classes}, row[classes]);
    }
  }
}

}  // namespace segfuse::learn
