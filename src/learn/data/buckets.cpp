#include <fmt/core.h>

#include <algorithm>
#include <numeric>

#include "base/rng.h"
#include "learn/data/buckets.h"
#include "segfuse/error.h"

namespace segfuse {

namespace {

/// Indices of sequences, by their length after the jitter.
std::vector<std::int64_t> sorted_by_length(std::span<const std::int64_t> lengths,
                                           const BucketConfig& config, Rng& rng) {
  std::vector<std::int64_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  rng.shuffle(order);
  std::vector<double> keys(lengths.size());
  for (std::size_t i = 0; i < keys.size(); ++i)
    keys[i] = static_cast<double>(lengths[i]) * (1 + config.jitter * (2 * rng.uniform() - 1));
  std::stable_sort(order.begin(), order.end(), [&](std::int64_t a, std::int64_t b) {
    return keys[static_cast<std::size_t>(a)] < keys[static_cast<std::size_t>(b)];
  });
  return order;
}

}  // namespace

std::vector<std::vector<std::vector<std::int64_t>>> make_steps(
    std::span<const std::int64_t> lengths, const BucketConfig& config, std::int64_t shards,
    std::int64_t epoch) {
  if (config.batch_size < 1 || config.max_frames < 0 || config.jitter < 0)
    throw UsageError(
        fmt::format("batches of {} sequences, {} frames, jitter {}; expected positive numbers",
                    config.batch_size, config.max_frames, config.jitter));
  if (shards < 1)
    throw UsageError(fmt::format("{} shards a step; expected a positive number", shards));
  Rng rng(config.seed, static_cast<std::uint64_t>(epoch));
  const std::vector<std::int64_t> order = sorted_by_length(lengths, config, rng);
  std::vector<std::vector<std::int64_t>> batches;
  std::int64_t longest = 0;
  for (const std::int64_t index : order) {
    const std::int64_t length = lengths[static_cast<std::size_t>(index)];
    const std::int64_t count =
        batches.empty() ? 0 : static_cast<std::int64_t>(batches.back().size());
    const bool full =
        config.max_frames > 0 && (count + 1) * std::max(longest, length) > config.max_frames;
    if (batches.empty() || count >= config.batch_size || full) {
      batches.emplace_back();
      longest = 0;
    }
    batches.back().push_back(index);
    longest = std::max(longest, length);
  }
  std::vector<std::vector<std::vector<std::int64_t>>> steps;
  for (std::vector<std::int64_t>& batch : batches) {
    if (steps.empty() || static_cast<std::int64_t>(steps.back().size()) == shards)
      steps.emplace_back();
    steps.back().push_back(std::move(batch));
  }
  rng.shuffle(steps);
  return steps;
}

std::vector<std::vector<std::int64_t>> make_buckets(std::span<const std::int64_t> lengths,
                                                    const BucketConfig& config,
                                                    std::int64_t epoch) {
  std::vector<std::vector<std::int64_t>> batches;
  for (std::vector<std::vector<std::int64_t>>& step : make_steps(lengths, config, 1, epoch))
    batches.push_back(std::move(step[0]));
  return batches;
}

}  // namespace segfuse
