#include <fmt/core.h>

#include <cmath>
#include <optional>

#include "base/memory/headroom.h"
#include "learn/train/decode/decoder_state.h"
#include "segfuse/error.h"

namespace segfuse::learn {

void check_attention(const ModelConfig& config, const std::vector<Sequence>& sequences,
                     const Batch& batch) {
  constexpr double kFew = 1 << 28;  // bytes, which are not worth a look at what is left
  constexpr double kCopies = 2;
  if (config.attention_blocks == 0) return;
  const Sequence* longest = nullptr;
  for (const std::int64_t row : batch.rows)
    if (longest == nullptr || sequences[static_cast<std::size_t>(row)].frames() > longest->frames())
      longest = &sequences[static_cast<std::size_t>(row)];
  const auto rows = static_cast<double>(batch.rows.size());
  const double positions =
      std::ceil(static_cast<double>(longest->frames()) / static_cast<double>(config.subsample));
  const double of_one = kCopies * sizeof(float) * static_cast<double>(config.attention_heads);
  const double bytes = rows * of_one * positions * positions;
  if (bytes < kFew) return;
  const std::optional<Headroom> left = memory_headroom();
  if (!left || bytes <= static_cast<double>(left->bytes)) return;
  const auto most = static_cast<std::int64_t>(std::sqrt(static_cast<double>(left->bytes) / of_one) *
                                              static_cast<double>(config.subsample));
  constexpr double kGib = 1 << 30;
  throw DataError(fmt::format(
      "{}: the model's attention over its {} frames needs {:.1f} GiB, and {:.1f} GiB are left of "
      "{}; cut it into recordings of less than {} frames, or train without attention_blocks",
      longest->id, longest->frames(), bytes / kGib, static_cast<double>(left->bytes) / kGib,
      left->of, most));
}

}  // namespace segfuse::learn
