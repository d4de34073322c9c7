#pragma once
// Batches of sequences of similar length.

#include <cstdint>
#include <span>
#include <vector>

namespace segfuse {

struct BucketConfig {
  std::int64_t batch_size = 16;  ///< at most so many sequences
  std::int64_t max_frames = 0;   ///< at most so many frames with padding (count x longest); 0: any
  std::uint64_t seed = 0;
  double jitter = 0.1;  ///< lengths are sorted after a factor of 1 +- jitter
};
/// Batches of indices into `lengths`, of similar length, in random order: a pure function of its
/// arguments. Each index appears once; a sequence longer than max_frames is a batch of its own.
std::vector<std::vector<std::int64_t>> make_buckets(std::span<const std::int64_t> lengths,
                                                    const BucketConfig& config, std::int64_t epoch);
/// Steps of `shards` batches each, of similar length, in random order; the step of the longest
/// sequences may have fewer. With one shard the batches of make_buckets().
std::vector<std::vector<std::vector<std::int64_t>>> make_steps(
    std::span<const std::int64_t> lengths, const BucketConfig& config, std::int64_t shards,
    std::int64_t epoch);

}  // namespace segfuse
