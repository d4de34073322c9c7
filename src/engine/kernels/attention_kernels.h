#pragma once
// What attention does with tiles of scores.

#include <cstdint>

namespace segfuse::engine {

/// Rows and columns of a tile of scores, at the most. A tile's rows are kTileColumns apart.
inline constexpr std::int64_t kTileRows = 96;
inline constexpr std::int64_t kTileColumns = 128;

/// Where the scores of a tile come from beside the product. A step of 0 repeats.
template <class T>
struct TileMask {
  std::int64_t rows = 0, columns = 0;
  T scale = 1, fill = 0;
  const T* bias = nullptr;  ///< null: none
  std::int64_t bias_row = 0, bias_column = 0;
  const std::uint8_t* mask = nullptr;  ///< null: none
  std::int64_t mask_row = 0, mask_column = 0;
  bool banded = false;
  std::int64_t seen = 0;  ///< columns that the first row sees if it is banded; each next one more
};

template <class T>
struct AttentionKernels {
  /// s = scale * s + bias, or the fill.
  void (*score)(const TileMask<T>& mask, T* s);
  /// s becomes the exponentials of scale * s less the greatest so far, `sum` their sums, and
  /// `factor` what is before has to be multiplied by.
  void (*weigh)(std::int64_t rows, std::int64_t columns, T scale, T* s, T* most, T* sum, T* factor);
  /// s becomes exp(scale * s - logs - rest).
  void (*weights)(std::int64_t rows, std::int64_t columns, T scale, T* s, const T* logs,
                  const T* rest);
  /// dp becomes scale * p * (dp - less), or 0 where nothing is seen.
  void (*slope)(const TileMask<T>& mask, const T* p, const T* less, T* dp);
};

/// Those of this processor.
template <class T>
AttentionKernels<T> attention_kernels();

}  // namespace segfuse::engine
