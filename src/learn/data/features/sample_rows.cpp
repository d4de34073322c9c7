#include "learn/data/features/sample_rows.h"

namespace segfuse::data {

void SampleRows::push(std::span<const float> samples, std::vector<float>& rows) {
  resampled_.clear();
  resampler_.push(samples, resampled_);
  base_.push(resampled_, rows);
}

void SampleRows::end(std::vector<float>& rows) {
  resampled_.clear();
  resampler_.end(resampled_);
  base_.push(resampled_, rows);
  base_.end(rows);
}

}  // namespace segfuse::data
