#pragma once
// Log-mel energies and cepstra of windows, and statistics over columns.

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "learn/data/features/bands.h"
#include "segfuse/data.h"

namespace segfuse::data {

/// Tables for one configuration; immutable.
class MelTransform {
 public:
  MelTransform(const FeatureConfig& config, std::int64_t window);

  /// Scratch memory of one thread; any content.
  struct Workspace {
    BandWork bands;
    std::vector<float> energies;
  };

  /// Each window has the samples of one row; `rows` gets n_mels log energies or n_mfcc cepstra of
  /// each; those of whisper as they are before the whole recording is known. A row does not depend
  /// on the other windows.
  void apply(std::span<const float* const> windows, std::span<float> rows,
             Workspace& workspace) const;

 private:
  void build_bands(const FeatureConfig& config);
  void build_slaney_bands(const FeatureConfig& config);
  void add_band(Band band, const FeatureConfig& config);
  void build_cosines(const FeatureConfig& config);

  FourierTables tables_;
  std::vector<float> taper_;
  std::vector<Band> bands_;
  float floor_;                 // of energies
  bool decimal_;                // logarithms
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
