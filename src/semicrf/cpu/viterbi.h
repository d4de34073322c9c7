#pragma once
// The best segmentation of one row.

#include <cstdint>
#include <vector>

#include "semicrf/problem.h"

namespace segfuse::semicrf {

struct ViterbiState {
  Buffer value;   ///< (L+1, stride) best prefix that ends at t with label c, relative to base
  Buffer source;  ///< (L+1, stride) best entry into label c at t, relative to the window's origin
  Buffer origin;  ///< (stride) score of the window's origin: content since it is in here
  Buffer best;    ///< (stride)
  Buffer best_k;  ///< (stride)
  Buffer best_from;                    ///< (stride)
  std::vector<double> base;            ///< (L+1)
  std::vector<std::int32_t> duration;  ///< (L+1, stride) of the last segment of value
  std::vector<std::int32_t> previous;  ///< (L+1, stride) label before it: by start, or by end when
                                       ///< transitions depend on duration
};

struct Segment {
  std::int32_t start;
  std::int32_t duration;
  std::int32_t label;
};

/// Fills `path`, first segment first; false, and an empty path, when no segmentation is possible.
/// row.length > 0. Ties as Engine::viterbi says.
bool viterbi_row(const Model& model, const Row& row, ViterbiState& state,
                 std::vector<Segment>& path);

}  // namespace segfuse::semicrf
