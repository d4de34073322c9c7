#pragma once
// First values of the CRF's scores, from what the training set says about the labels.

#include <vector>

#include "learn/train/loop/corpus.h"
#include "segfuse/tensor.h"

namespace segfuse::learn {

/// Longest duration allowed for each label: a quarter and two frames more than was seen, at most
/// `max_duration`; `max_duration` itself for a label that was never seen.
std::vector<std::int64_t> duration_limits(const LabelStatistics& statistics,
                                          std::int64_t max_duration);
/// f32 (K, C): 0 where the duration is allowed, -inf elsewhere.
Tensor duration_limit_table(const std::vector<std::int64_t>& limits, std::int64_t max_duration,
                            const std::vector<std::int64_t>& shortest = {});

/// Overwrites crf.transition, crf.initial, crf.final and crf.duration in `parameters` (those that
/// exist) with smoothed log-frequencies. For a linear chain the frequencies are those of frames.
void start_crf(const Segmenter& segmenter, const LabelStatistics& statistics,
               std::vector<Tensor>& parameters);

}  // namespace segfuse::learn
