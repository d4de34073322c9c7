#pragma once
// A small model and sequences for it.

#include <algorithm>
#include <string>
#include <vector>

#include "base/rng.h"
#include "learn/train/loop/trainer.h"
#include "support/tensors.h"

namespace segfuse::learn {

/// Two features, three labels, four frames a segment at most.
inline ModelConfig tiny(double dropout, HeadKind head = HeadKind::kSemiMarkov) {
  ModelConfig m;
  m.width = 4;
  m.kernel = 3;
  m.dilations = {1};
  m.dropout = dropout;
  m.head = head;
  m.features = 2;
  m.classes = 3;
  m.max_duration = 4;
  return m;
}

/// Sequences of these lengths for it, named by them.
inline std::vector<Sequence> some_sequences(std::uint64_t seed = 9,
                                            const std::vector<std::int64_t>& lengths = {
                                                9, 14, 11, 6, 17, 5, 8, 12, 10, 13, 7}) {
  std::vector<Sequence> all;
  Rng rng(seed);
  for (const std::int64_t frames : lengths) {
    Sequence s{
        "r" + std::to_string(frames), segfuse::testing::uniform(rng, DType::kF32, {frames, 2}), {}};
    for (std::int64_t t = 0; t < frames;) {
      const auto length =
          std::min<std::int64_t>(1 + static_cast<std::int64_t>(rng.below(4)), frames - t);
      s.segments.push_back({t, length, static_cast<std::int32_t>(rng.below(3))});
      t += length;
    }
    all.push_back(std::move(s));
  }
  return all;
}

}  // namespace segfuse::learn
