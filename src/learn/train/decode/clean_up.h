#pragma once
// What people do to the output of a per-frame classifier, so that the comparison has it at its
// best: a majority vote over neighbouring frames, then a minimum duration.

#include <cstdint>
#include <functional>
#include <vector>

#include "segfuse/data.h"

namespace segfuse {
class ThreadPool;
}

namespace segfuse::learn {

struct CleanUp {
  std::int64_t shortest = 1;  ///< in frames; 1: no minimum
  std::int64_t window = 1;    ///< frames that vote, odd; 1: no vote
  bool operator==(const CleanUp&) const = default;
};

/// Each frame gets the label that most frames within `window` / 2 of it have (fewer at the ends);
/// among equals its own, else the lowest number. O(frames x labels) time.
std::vector<FrameSegment> majority_vote(const std::vector<FrameSegment>& segments,
                                        std::int64_t window);

/// As long as there are several segments and one is shorter than `shortest`: the shortest, of
/// equals the first, becomes part of its longer neighbour, of equals the one before. Neighbours of
/// one label are one segment, also where they meet in this way. O(n log n) time.
std::vector<FrameSegment> without_short(const std::vector<FrameSegment>& segments,
                                        std::int64_t shortest);

/// The vote, then the minimum.
std::vector<FrameSegment> clean_up(const std::vector<FrameSegment>& segments, CleanUp setting);

/// What is tried: durations up to the median of `gold`, windows up to twice that, every value at
/// first and further apart later. In order of the duration, then of the window.
std::vector<CleanUp> clean_up_candidates(const std::vector<std::vector<FrameSegment>>& gold);

struct TunedCleanUp {
  CleanUp setting;
  double score = 0;
  std::int64_t tried = 0;
};
using CleanUpScore = std::function<double(const std::vector<std::vector<FrameSegment>>& cleaned)>;
/// The candidate with the best score, of equals the first. `score` is called from several threads.
TunedCleanUp tune_clean_up(const std::vector<std::vector<FrameSegment>>& decoded,
                           const std::vector<CleanUp>& candidates, const CleanUpScore& score,
                           bool lower_is_better, ThreadPool& pool);

}  // namespace segfuse::learn
