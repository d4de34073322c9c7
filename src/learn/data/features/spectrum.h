#pragma once
// Log-mel energies and cepstra of one window at a time, and statistics over columns.

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "segfuse/data.h"

namespace segfuse::data {

/// Tables for one configuration; immutable.
class MelTransform {
 public:
  MelTransform(const FeatureConfig& config, std::int64_t window);
  ~MelTransform();

  /// What one thread needs while it transforms.
  class Workspace {
   public:
    explicit Workspace(const MelTransform& transform);
    ~Workspace();

   private:
    friend class MelTransform;
    struct Impl;
    std::unique_ptr<Impl> impl_;
  };

  /// `window` holds the samples; writes n_mels log energies or n_mfcc cepstra.
  void apply(std::span<const float> window, std::span<float> out, Workspace& workspace) const;

 private:
  struct Filter {
    std::size_t first_bin = 0;
    std::vector<float> weights;
  };
  void build_filters(const FeatureConfig& config);
  void build_cosines(const FeatureConfig& config);

  std::size_t fft_size_ = 0;
  std::vector<float> taper_;
  std::vector<Filter> filters_;
  std::vector<float> cosines_;  // (n_mfcc, n_mels), liftered; empty for log-mel
};

/// Mean 0 and deviation 1 of each column.
struct ColumnScale {
  std::vector<double> mean;
  std::vector<double> deviation;  ///< a constant column has 1
  /// The first columns of rows that are `columns` apart.
  void apply(std::span<float> values, std::int64_t columns) const;
};
using RowVisitor = std::function<void(const float* row)>;
/// Of rows of `width` values; for_all_rows calls its argument with each, twice in the same order.
ColumnScale scale_of_columns(std::size_t width,
                             const std::function<void(const RowVisitor&)>& for_all_rows);

/// Mean 0 and deviation 1 of the first `width` of `columns` columns; constant ones become 0.
void normalise_columns(std::span<float> values, std::int64_t frames, std::int64_t columns,
                       std::int64_t width);

}  // namespace segfuse::data
