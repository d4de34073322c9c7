#pragma once
// Time-parallel passes over one long row. The row is cut into parts; each starts from a guess a few
// windows before its own boundaries. The recursions are linear and positive, so what different
// starts lead to becomes the same but for its scale. Where the window a part came in with differs
// from the one its neighbour went out with, it is done again from the latter, until none differs.
// How a row is cut depends on its length and the model alone, so bits do not depend on threads.

#include <cstdint>
#include <memory>
#include <vector>

#include "semicrf/cpu/sum/scaled.h"

namespace segfuse {
class ThreadPool;
}

namespace segfuse::semicrf {

/// One part at work.
struct RowChunk {
  ScaledState state;
  ScaledRow row;
  ScaledWindow neighbour;            ///< to start again from
  AlignedDoubles neighbour_value;    ///< (2, stride) value and linked of the boundary they share
  AlignedDoubles backward_outgoing;  ///< the backward window at the part's first boundary
  double forward_log = 0.0;          ///< log of true over stored forward values, exponents apart
  double backward_log = 0.0;
  bool again = false;
};

struct ChunkedState {
  std::vector<std::unique_ptr<RowChunk>> chunks;
  std::int64_t count = 0;
};

/// Whether rows of this length are cut.
bool is_chunked(const Dims& dims, std::int64_t length);

/// Sets row.log_partition; false when the row has to be done in one piece.
bool chunked_forward(ScaledRow& row, ChunkedState& state, ThreadPool& pool);

/// After chunked_forward: fills row.out; false when the row has to be done in one piece.
bool chunked_expectations(ScaledRow& row, ChunkedState& state, ThreadPool& pool);

/// log P(segment (start, duration, label)) after chunked_expectations with row.keep_backward.
double chunked_segment(const ScaledRow& row, const ChunkedState& state, std::int64_t start,
                       std::int64_t duration, std::int64_t label);

}  // namespace segfuse::semicrf
