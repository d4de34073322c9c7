#pragma once
// The features of a corpus: in memory as far as they are few, the others in a file.

#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "base/mutex.h"
#include "base/os/scratch_file.h"
#include "segfuse/tensor.h"

namespace segfuse::data {

/// Rows [first, first + count) of a matrix: a view, which keeps all of it.
Tensor rows_of(const Tensor& matrix, std::int64_t first, std::int64_t count);

/// Matrices (T, D) f32. Those beyond a budget lie in a file without a name and come back as views
/// of it that cannot be written to; the pages that are in memory are the system's to drop. Views
/// outlive the store. May be used from many threads at once.
class FeatureStore {
 public:
  /// What is held in memory of all together: four hours of 40 bands at 100 frames a second, next to
  /// which a network and its batches are no less.
  static constexpr std::uint64_t kBudget = std::uint64_t{256} << 20;

  /// With an empty folder everything stays in memory.
  explicit FeatureStore(std::filesystem::path folder, std::uint64_t budget = kBudget)
      : folder_(std::move(folder)), budget_(budget) {}
  FeatureStore(const FeatureStore&) = delete;
  FeatureStore& operator=(const FeatureStore&) = delete;

  /// Empty where everything stays in memory.
  const std::filesystem::path& folder() const { return folder_; }
  /// Throws FileError (a full disk: ENOSPC).
  Tensor keep(Tensor features);
  /// A matrix of at most so many rows, which next() gives piece by piece, (0, D) at the end.
  Tensor keep(std::int64_t rows, const std::function<Tensor()>& next);
  /// Replaces what keep() gave, or some of its rows, by what `change` makes of it; it is called for
  /// some rows at a time.
  void change(Tensor& features, const std::function<void(Tensor&)>& change);
  /// The size of the file.
  std::uint64_t bytes_in_file() const;

 private:
  /// A part of the file that is mapped as one.
  struct Part {
    std::shared_ptr<std::byte> memory;
    std::uint64_t offset = 0, size = 0, used = 0;
  };
  /// Room for a matrix in a part.
  struct Place {
    std::shared_ptr<std::byte> memory;
    std::uint64_t offset = 0;
  };
  bool fits_memory(std::uint64_t bytes);
  Place place_for(std::uint64_t bytes);
  std::optional<std::uint64_t> offset_of(const Tensor& features) const;
  void write(std::uint64_t offset, const Tensor& rows);

  std::filesystem::path folder_;
  std::uint64_t budget_;
  mutable Mutex mutex_;
  std::uint64_t held_ SEGFUSE_GUARDED_BY(mutex_) = 0;
  std::optional<ScratchFile> file_ SEGFUSE_GUARDED_BY(mutex_);
  std::vector<Part> parts_ SEGFUSE_GUARDED_BY(mutex_);
};

}  // namespace segfuse::data
