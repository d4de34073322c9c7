#pragma once
// Numbers of a long recording that are kept in a file without a name, or held.

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <vector>

#include "base/os/scratch_file.h"
#include "segfuse/semicrf_tools.h"

namespace segfuse::learn {

/// Rows of `width` numbers that are appended, and read again in ranges.
class RowStore {
 public:
  /// In a file in `scratch`; held where that is empty.
  RowStore(std::int64_t width, const std::filesystem::path& scratch) : width_(width) {
    if (!scratch.empty()) file_.emplace(scratch);
  }
  void append(std::span<const float> rows) {
    if (file_)
      file_->append(std::as_bytes(rows));
    else
      held_.insert(held_.end(), rows.begin(), rows.end());
  }
  /// Rows [first, first + n), until the next call.
  const float* read(std::int64_t first, std::int64_t n) {
    if (!file_) return held_.data() + first * width_;
    held_.resize(static_cast<std::size_t>(n * width_));
    file_->read(static_cast<std::uint64_t>(first * width_) * sizeof(float),
                std::as_writable_bytes(std::span(held_)));
    return held_.data();
  }
  std::int64_t width() const { return width_; }

 private:
  std::int64_t width_;
  std::optional<ScratchFile> file_;
  std::vector<float> held_;
};

class NumberFile : public semicrf::NumberStore {
 public:
  explicit NumberFile(const std::filesystem::path& scratch) : file_(scratch) {}
  void append(std::span<const double> numbers) override { file_.append(std::as_bytes(numbers)); }
  void read(std::int64_t first, std::span<double> numbers) override {
    file_.read(static_cast<std::uint64_t>(first) * sizeof(double), std::as_writable_bytes(numbers));
  }

 private:
  ScratchFile file_;
};

}  // namespace segfuse::learn
